"""Random pairs average their models, in the background of training; nobody waits, and nobody is interrupted.

State of node i: x_i, the live model; s_i, its value at the last merge; y_i, the copy that others see.

Swarm (B)   y_i, y_j are averaged with a random neighbour j while i takes H steps on x_i:
                d = (Q(y_j) - Q(y_i)) / 2;      y_i <- y_i + d;      y_j <- y_j - d
            after every step, whatever has come by then,   y_i <- y_i + (x_i - s_i);    x_i, s_i <- y_i
            so that the sum of all y moves by local progress only, exactly, whatever the codec does. A node averages
            with one other at a time, and in turns: about once per phase it calls, or is called. In the paper x and y
            are merged after H steps only (``merge_every_step=False``).

SwarmPull   (C)  x_i <- (x_i + Q(x_j)) / 2 every H steps; j is only read.

SwarmPairs  (A)  all pairs of a random matching wait for each other: x_i, x_j <- (x_i + x_j) / 2. For study.

Nadiradze, Sabour, Davies, Li, Alistarh: asynchronous decentralized SGD with quantized and local updates, NeurIPS 2021,
arXiv 1910.12308.

Sends   one coded model, and gets one, per H steps
Waits   for nobody (B; C for one reply per H steps)
Keeps   the copy, what it was at the last merge, the distances seen, and a reply until its caller has it (B)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from flockstep import check
from flockstep.codecs.codec import Codec
from flockstep.codecs.coder import Coder, asks_again, coder_for
from flockstep.codecs.raw import Raw
from flockstep.errors import LostPeer
from flockstep.message import NOTHING, Message
from flockstep.node import Node
from flockstep.parts.pair_exchange import PairExchange
from flockstep.parts.partners import in_full, matching, partners, swap
from flockstep.parts.suitability import MODELS, codec_for
from flockstep.topologies import Complete, Topology

_TOPIC = "swarm"


@dataclass(frozen=True, kw_only=True)
class _Local:
    """What all three have: how many steps a phase has, and in how many bits it is shared; each says what they mean."""

    own_gradients: ClassVar[bool] = True

    period: int = 1
    codec: Codec = Raw()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        codec_for(self, self.codec, MODELS, such_as="Modular(bits=8)", instead="Modular(bits=8) or Cast()")


@dataclass(frozen=True, kw_only=True)
class _OnTheirOwn(_Local):
    """What the two have whose nodes draw partners, and lengths of phases, each for itself."""

    geometric: bool = False
    topology: Topology = Complete()

    def __post_init__(self) -> None:
        super().__post_init__()
        check.has(self, "topology", self.topology, "peers", kind="a topology such as Ring()")

    def phase(self, rng: np.random.Generator) -> int:
        """How many steps the next phase has."""
        return int(rng.geometric(1 / self.period)) if self.geometric else self.period


@dataclass(frozen=True, kw_only=True)
class Swarm(_OnTheirOwn):
    """SwarmSGD: every node steps on its own, and in the background averages with a random neighbour; no node waits.

        d = (Q(y_j) - Q(y_i)) / 2;   y_i <- y_i + d;   y_j <- y_j - d      with a random neighbour j, in the background
        y_i <- y_i + (x_i - s_i);    x_i, s_i <- y_i                       after every step

    x_i is the live model, s_i its value at the last merge, y_i the copy that others average with, Q the codec. A node
    averages with one other at a time. Nodes may die, come back and come late; every node ends with a model of its own.

    Nadiradze, Sabour, Davies, Li, Alistarh: asynchronous decentralized SGD with quantized and local updates, NeurIPS
    2021, arXiv 1910.12308, its non-blocking form.

    Args:
        period: Steps that a node takes between two exchanges. About: more, where the network is slower.
        geometric: True: the steps of each phase are drawn, with ``period`` as their mean, as in the paper's analysis.
        topology: Which nodes are neighbours (see ``fs.topologies``). By default all of them.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries models: not ``TopK``.
        merge_every_step: True: x and y are merged after every step. False: at the end of a phase only, as in the paper,
            where nodes learn less from each other.

    Example:
        with fs.join(model, optimizer, fs.Swarm(period=4, codec=fs.codecs.Modular(bits=8))) as node:
            train(model, optimizer)  # your own loop
            node.meet()
            best = node.average_model()  # the one to save
    """

    one_sided: ClassVar[bool] = True

    merge_every_step: bool = True

    async def run(self, node: Node) -> None:
        """Phases of local steps, each with one exchange behind it."""
        x, left = node.params, 0
        y, s = node.keep("copy", x.clone()), node.keep("began", x.clone())
        meetings = PairExchange(node, _TOPIC, y, self.codec, self.topology)

        def merge() -> None:
            with node.undisturbed():
                # y + (x - s), in the order in which a node that met nobody stays where it is, to the bit.
                x.add_(y - s)
                meetings.take_statistics(x)
                y.copy_(x)
            s.copy_(x)

        async for _ in node.steps():
            if left == 0:
                await meetings.begin_phase()
                left = self.phase(node.rng)
            await node.step(await node.gradient(x))
            left -= 1
            if left == 0 or self.merge_every_step:
                merge()
        await meetings.close()
        merge()
        meetings.show(x)


@dataclass(frozen=True, kw_only=True)
class SwarmPull(_OnTheirOwn):
    """SwarmSGD by reading alone: every node goes half the way to the model of a random neighbour, which is not touched.

        x_i <- (x_i + Q(x_j)) / 2                                  every ``period`` steps, j a random neighbour

    Q is the codec. The mean of all nodes is not conserved. Nodes may die, come back and come late; every node ends with
    a model of its own.

    Nadiradze, Sabour, Davies, Li, Alistarh: asynchronous decentralized SGD with quantized and local updates, NeurIPS
    2021, arXiv 1910.12308, as in its authors' program.

    Args:
        period: Steps that a node takes between two exchanges. It waits for the one reply.
        geometric: True: the steps of each phase are drawn, with ``period`` as their mean, as in the paper's analysis.
        topology: Which nodes are neighbours (see ``fs.topologies``). By default all of them.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries models: not ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.SwarmPull(period=4)):
            train(model, optimizer)  # your own loop
    """

    one_sided: ClassVar[bool] = True

    async def run(self, node: Node) -> None:
        """Local steps, then one pull."""
        x, coder = node.params, coder_for(self.codec, node, node.params)
        node.answer(_TOPIC, lambda peer, message: _show(x, coder, message))
        left = self.phase(node.rng)
        async for _ in node.steps():
            await node.step(await node.gradient(x))
            left -= 1
            if left <= 0:
                await self._pull(node, x, coder)
                left = self.phase(node.rng)

    async def _pull(self, node: Node, x: Tensor, coder: Coder) -> None:
        for peer in partners(node, self.topology):
            try:
                read = coder.read(await node.ask(peer, _TOPIC, NOTHING), x)
                if isinstance(read, Message):
                    read = coder.read(await node.ask(peer, _TOPIC, read), x)
            except LostPeer:
                node.count("partners lost")
                continue
            node.count("exchanges")
            x.add_((in_full(read, node, peer) - x) / 2)
            return


def _show(x: Tensor, coder: Coder, message: Message) -> Message:
    """The model as it is now; exactly, if some of it could not be read."""
    return coder.exact(x) if asks_again(message) else coder.write(x)


@dataclass(frozen=True, kw_only=True)
class SwarmPairs(_Local):
    """SwarmSGD in rounds: all nodes meet in random pairs, which wait for each other: for studies and comparisons.

        x_i, x_j <- (x_i + x_j) / 2                                every ``period`` steps, for every pair

    With an odd number of nodes one stays alone in each round. Every node ends with a model of its own.

    Nadiradze, Sabour, Davies, Li, Alistarh: asynchronous decentralized SGD with quantized and local updates, NeurIPS
    2021, arXiv 1910.12308, its blocking form.

    Args:
        period: Steps that a node takes between two exchanges.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries models: not ``TopK``.
        matching_seed: Seed from which every node draws the same pairs.

    Example:
        with fs.join(model, optimizer, fs.SwarmPairs(period=4)):
            train(model, optimizer)  # your own loop
    """

    matching_seed: int = 0

    async def run(self, node: Node) -> None:
        """Local steps, then an average with this round's partner."""
        x, coder = node.params, coder_for(self.codec, node, node.params)
        async for k in node.steps():
            await node.step(await node.gradient(x))
            if (k + 1) % self.period == 0:
                partner = self.matching(k // self.period, node.size).get(node.rank)
                if partner is not None:
                    x.add_(await swap(node, partner, x, coder))

    def matching(self, round: int, size: int) -> dict[int, int]:
        """Who meets whom in a round: the same answer on every node; with an odd number one stays alone."""
        return matching(self.matching_seed, round, size)
