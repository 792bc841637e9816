"""Everyone's model, asked for without stopping anyone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from flockstep.codecs.raw import Raw
from flockstep.errors import LostPeer
from flockstep.message import NOTHING, Message
from flockstep.node import Handler, Node
from flockstep.vector import is_finite

TOPIC = "flockstep snapshot"
_NOT_FINITE = Message.of_bytes(b"", "not finite")


def answer(node: Node, answer: Callable[[str, Handler], None] | None = None) -> None:
    """Let the others ask for this node's model; ``answer`` is the node's own verb unless given."""

    def show(peer: int, message: Message) -> Message:
        # Whoever asks does not stop this node, which will find out by itself: at its next exchange it ends.
        return Raw().encode(node.params, np.random.default_rng(0)) if is_finite(node.params) else _NOT_FINITE

    (answer or node.answer)(TOPIC, show)


class Gathering:
    """The mean of models that come one by one, and how far they lie apart, in the room of two."""

    def __init__(self, own: Tensor) -> None:
        self._own, self._count, self._squares = own, 1, 0.0
        # With room for a sum of many.
        self.mean = own.to(torch.promote_types(own.dtype, torch.float32), copy=True)

    def add(self, reply: Message) -> bool:
        """Another node's model; False if it has none that is finite, and is left out."""
        if reply.codec == _NOT_FINITE.codec:
            return False
        distance = Raw().decode(reply, self._own).to(self.mean.dtype).sub_(self.mean)
        # As if all before stood at their mean, and this one at its distance (Welford).
        self._squares += float(distance.square().sum()) * self._count / (self._count + 1)
        self._count += 1
        self.mean.add_(distance, alpha=1 / self._count)
        return True

    @property
    def spread(self) -> float:
        """The mean squared distance from the mean."""
        return self._squares / self._count


def of_the_living(node: Node, ask: Callable[[int, str, Message], Message]) -> Gathering:
    """This node's model with those of all who answer; whoever is lost meanwhile is left out."""
    gathering = Gathering(node.params)
    for peer in node.peers():
        with suppress(LostPeer):
            gathering.add(ask(peer, TOPIC, NOTHING))
    return gathering
