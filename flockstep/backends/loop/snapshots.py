"""Everyone's model, asked for without stopping anyone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from flockstep.errors import LostPeer
from flockstep.message import NOTHING, Message
from flockstep.node import Node
from flockstep.parts.codecs.raw import Raw

TOPIC = "flockstep snapshot"


def answer(node: Node) -> None:
    """Let the others ask for this node's model."""
    node.answer(TOPIC, lambda peer, message: Raw().encode(node.params, np.random.default_rng(0)))


def read(reply: Message, near: Tensor) -> Tensor:
    """The model in a reply, with room for a sum of many."""
    return Raw().decode(reply, near).to(torch.promote_types(near.dtype, torch.float32))


def of_the_living(node: Node, ask: Callable[[int, str, Message], Message]) -> Iterator[Tensor]:
    """This node's model and those of all who answer; whoever is lost meanwhile is left out."""
    yield node.params.to(torch.promote_types(node.params.dtype, torch.float32), copy=True)
    for peer in node.peers():
        try:
            yield read(ask(peer, TOPIC, NOTHING), node.params)
        except LostPeer:
            continue
