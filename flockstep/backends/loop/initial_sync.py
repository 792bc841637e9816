"""What happens at the door: nodes compare what they brought, and all start from node 0's weights."""

from __future__ import annotations

import hashlib
import json

import torch

from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.loop.serialization import as_bytes, plain_tensors, take_bytes
from flockstep.errors import Mismatch
from flockstep.message import Message


async def compare(node: JoinedNode, strategy: str) -> None:
    """Mismatch unless every node brought the same strategy and a model of the same names, shapes and dtypes."""
    lines = [f"strategy {strategy}", *node.flat.describe()]
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    mine = Message.of_bytes(digest)
    theirs = await node.exchange([mine] * node.size, "door")
    if all(message.to_bytes() == digest for message in theirs):
        return
    # Only now that something differs do whole lists travel, so that it can be named.
    everyones = await node.exchange([Message.of_bytes(json.dumps(lines).encode())] * node.size, "door")
    parsed = [json.loads(message.to_bytes()) for message in everyones]
    for rank, other in enumerate(parsed):
        if other != parsed[0]:
            raise Mismatch(first_difference(parsed[0], other, 0, rank), rank=node.rank)


async def take_weights_of_node_0(node: JoinedNode) -> None:
    """Node 0's weights and buffers go to all, exactly: what is trained, and what is not."""
    if node.rank == 0:
        node.check_finite(node.params, "the model")
    for tensor in (plain for shared in node.flat.shared() for plain in plain_tensors(shared)):
        mine = as_bytes(tensor)
        message = Message(mine if node.rank == 0 else mine[:0], "weights", (), torch.uint8)
        first = (await node.exchange([message] * node.size, "door"))[0]
        take_bytes(tensor, first.data)
    node.flat.settle()


def first_difference(first: list[str], other: list[str], a: int, b: int) -> str:
    """In what nodes ``a`` and ``b`` differ, by the first line that does."""
    for mine, theirs in zip(first, other, strict=False):
        if mine != theirs:
            return f"nodes {a} and {b} do not train the same: node {a} has {mine!r}, node {b} has {theirs!r}"
    longer, by = (first, a) if len(first) > len(other) else (other, b)
    extra = longer[min(len(first), len(other))]
    return f"nodes {a} and {b} do not train the same: only node {by} has {extra!r}"
