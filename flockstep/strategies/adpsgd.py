"""Asynchronous decentralised parallel SGD (AD-PSGD): average with somebody while the gradient is computed at a copy.

State of node i: y_i, the live model, which others may average with at any moment; x_i, a copy of it, at which
gradients are computed.

    y_i, y_j <- (y_i + y_j) / 2                            with a random neighbour j, while the gradient is computed
    y_i <- y_i - eta * g_i(x_i);      x_i <- y_i           then

Which is ``Swarm`` with one local step: that paper generalises this one, and so does its program here. A node averages
with one other at a time, as the paper asks for; there a bipartite graph keeps two from calling each other, here a node
that is called meanwhile says that it is busy.

Lian, Zhang, Zhang, Liu: asynchronous decentralized parallel stochastic gradient descent, ICML 2018, arXiv 1710.06952.

Sends   one coded model, and gets one, about every step
Waits   for nobody
Keeps   the live model, and the copy as it was taken
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flockstep import check
from flockstep.codecs.codec import Codec
from flockstep.codecs.raw import Raw
from flockstep.node import Node
from flockstep.parts.pair_exchange import PairExchange
from flockstep.parts.suitability import MODELS, codec_for
from flockstep.topologies import Complete, Topology

_TOPIC = "adpsgd"


@dataclass(frozen=True, kw_only=True)
class ADPSGD:
    """AD-PSGD: a node averages with a random neighbour while its gradient is computed, and waits for no node.

        y_i, y_j <- (y_i + y_j) / 2                     with a random neighbour j, while the gradient is computed
        y_i <- y_i - eta * g_i(x_i);      x_i <- y_i    then

    y_i is the live model, which others average with; x_i is the copy of it at which gradients are computed. Nodes may
    die, come back and come late.

    Lian, Zhang, Zhang, Liu: asynchronous decentralized parallel stochastic gradient descent, ICML 2018, arXiv
    1710.06952.

    Args:
        topology: Which nodes are neighbours (see ``fs.topologies``). By default all of them.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries models: not ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.ADPSGD(codec=fs.codecs.Modular(bits=8))):
            train(model, optimizer)  # your own loop
    """

    one_sided: ClassVar[bool] = True
    own_gradients: ClassVar[bool] = True

    topology: Topology = Complete()
    codec: Codec = Raw()

    def __post_init__(self) -> None:
        check.has(self, "topology", self.topology, "peers", kind="a topology such as Ring()")
        codec_for(self, self.codec, MODELS, such_as="Modular(bits=8)", instead="Modular(bits=8) or Cast()")

    async def run(self, node: Node) -> None:
        """A gradient and an average side by side, then both into the live model."""
        x = node.params
        y, copied = node.keep("live", x.clone()), node.keep("copied", x.clone())
        meetings = PairExchange(node, _TOPIC, y, self.codec, self.topology, owner="ADPSGD")

        def merge() -> None:
            with node.undisturbed():
                # y + what the step made of the copy, in the order in which one that met nobody stays where it is.
                x.add_(y - copied)
                meetings.take_statistics(x)
                y.copy_(x)
            copied.copy_(x)

        async for _ in node.steps():
            await meetings.begin_phase()
            await node.step(await node.gradient(x))
            merge()
        await meetings.close()
        merge()
        meetings.show(x)
