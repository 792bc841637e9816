"""Asynchronous decentralised parallel SGD (AD-PSGD): average with somebody while the gradient is computed at a copy.

State of node i: y_i, the live model, which others may average with at any moment; x_i, a copy of it, at which
gradients are computed.

    y_i, y_j <- (y_i + y_j) / 2                            with a random neighbour j, while the gradient is computed
    y_i <- y_i - eta * g_i(x_i);      x_i <- y_i           then

The optimizer steps on x, and what it did goes to y: any optimizer works, and the gradient is applied to a model that
has been averaged since the copy was taken. A user's loop computes in place on its model, which is this copy: it is
renewed when a step ends, and never changes during a forward or a backward pass.
The average is applied as a difference on both sides, so that the sum of all y moves by the steps only, exactly,
whatever the codec does. A partner that dies is passed over, and another drawn.

Lian, Zhang, Zhang, Liu: asynchronous decentralized parallel stochastic gradient descent, ICML 2018, arXiv 1710.06952.

Sends   one coded model, and gets one, every step
Waits   for one reply, if that takes longer than a gradient; for nobody's gradient
Keeps   the live model, and the copy as it was taken
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from flockstep import check
from flockstep.message import Message
from flockstep.node import Node, Pending
from flockstep.parts.codecs.codec import Codec
from flockstep.parts.codecs.coder import Coder, coder
from flockstep.parts.codecs.raw import Raw
from flockstep.parts.partners import gain, meet, meet_to_the_end, take
from flockstep.parts.suited import MODELS, codec_for
from flockstep.parts.topologies import Complete, Topology

_TOPIC = "adpsgd"


@dataclass(frozen=True, kw_only=True)
class ADPSGD:
    """Average with somebody while you compute, then step."""

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
        live, copied = node.keep("live", x.clone()), node.keep("copied", x.clone())
        ways, met = coder(self.codec, node, x), 0

        def answer(peer: int, message: Message) -> Message:
            nonlocal met
            met += 1
            return meet(live, ways, message)

        def renew(gained: Tensor | None) -> None:
            nonlocal met
            with node.undisturbed():
                # How often others have moved the live model since the copy was taken.
                node.count("staleness", met)
                met = 0
            take(node, x, live, copied, gained)

        node.answer(_TOPIC, answer)
        averaging: Pending[Tensor | None] | None = None
        async for _ in node.steps():
            await node.step(await node.gradient(x))
            renew(None if averaging is None else await averaging)
            averaging = node.spawn(self._average(node, copied.clone(), ways))
        renew(None if averaging is None else await averaging)
        meet_to_the_end(node, _TOPIC, live, ways, x)

    async def _average(self, node: Node, sent: Tensor, ways: Coder) -> Tensor | None:
        """What the live model gains from a neighbour; None if nobody answers."""
        return await gain(node, _TOPIC, self.topology, sent, ways)
