"""What happens at the door: nodes compare what they brought, and all start from node 0's weights."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor

from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.loop.serialization import as_bytes, plain_tensors, take_bytes
from flockstep.errors import Mismatch
from flockstep.message import Message


def lines(node: JoinedNode, strategy: str) -> list[str]:
    """What nodes that train the same say alike."""
    return [f"strategy {strategy}", *node.flat.describe()]


async def compare(node: JoinedNode, strategy: str) -> None:
    """Mismatch unless every node brought the same strategy and a model of the same names, shapes and dtypes."""
    mine = lines(node, strategy)
    digest = hashlib.sha256("\n".join(mine).encode()).digest()
    theirs = await node.exchange([Message.of_bytes(digest)] * node.size, "door")
    if all(theirs[rank].to_bytes() == digest for rank in node.view):
        return
    # Only now that something differs do whole lists travel, so that it can be named.
    everyones = await node.exchange([Message.of_bytes(json.dumps(mine).encode())] * node.size, "door")
    parsed = {rank: json.loads(everyones[rank].to_bytes()) for rank in node.view}
    first = node.view[0]
    for rank, other in parsed.items():
        if other != parsed[first]:
            raise Mismatch(first_difference(parsed[first], other, first, rank), rank=node.rank)


async def take_weights_of_first(node: JoinedNode) -> None:
    """The first node's weights and buffers go to all, exactly: what is trained, and what is not."""
    if node.rank == node.view[0]:
        node.check_finite(node.params, "the model")
    for tensor in (plain for shared in node.flat.shared() for plain in plain_tensors(shared)):
        take_bytes(tensor, (await _of_first(node, as_bytes(tensor))).data)
    node.flat.settle()


async def _of_first(node: JoinedNode, mine: Tensor) -> Message:
    while True:
        first = node.view[0]
        message = Message(mine if node.rank == first else mine[:0], "weights", (), torch.uint8)
        received = await node.exchange([message] * node.size, "door")
        # In an elastic run it may have died meanwhile: then the next is first, for everybody alike.
        if first in node.view:
            return received[first]


def first_difference(first: list[str], other: list[str], a: int, b: int) -> str:
    """In what nodes ``a`` and ``b`` differ, by the first line that does."""
    for mine, theirs in zip(first, other, strict=False):
        if mine != theirs:
            return f"nodes {a} and {b} do not train the same: node {a} has {mine!r}, node {b} has {theirs!r}"
    longer, by = (first, a) if len(first) > len(other) else (other, b)
    extra = longer[min(len(first), len(other))]
    return f"nodes {a} and {b} do not train the same: only node {by} has {extra!r}"
