"""What happens at the door: nodes compare what they brought, and all start from node 0's weights."""

from __future__ import annotations

import hashlib
import json

import torch

from flockstep.backends.loop.node import JoinedNode
from flockstep.errors import Mismatch
from flockstep.message import Message


async def compare(node: JoinedNode, strategy: str) -> None:
    """Mismatch unless every node brought the same strategy and a model of the same names, shapes and dtypes."""
    lines = [f"strategy {strategy}", *node.flat.describe()]
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    mine = _text(digest)
    theirs = await node.exchange([mine] * node.size, "door")
    if all(bytes(message.data.tolist()) == digest for message in theirs):
        return
    # Only now that something differs do whole lists travel, so that it can be named.
    everyones = await node.exchange([_text(json.dumps(lines).encode())] * node.size, "door")
    told = [json.loads(bytes(message.data.tolist())) for message in everyones]
    for rank, other in enumerate(told):
        if other != told[0]:
            raise Mismatch(_first_difference(told[0], other, rank), rank=node.rank)


async def take_weights_of_node_0(node: JoinedNode) -> None:
    """Node 0's weights and buffers go to all, exactly: what is trained, and what is not."""
    for tensor in (node.params, *node.flat.rest.values()):
        mine = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        message = Message(mine if node.rank == 0 else mine[:0], "weights", (), torch.uint8)
        first = (await node.exchange([message] * node.size, "door"))[0]
        tensor.data.copy_(first.data.to(mine.device).view(tensor.dtype).view(tensor.shape))


def _text(data: bytes) -> Message:
    return Message(torch.frombuffer(bytearray(data), dtype=torch.uint8), "text", (), torch.uint8)


def _first_difference(first: list[str], other: list[str], rank: int) -> str:
    for mine, theirs in zip(first, other, strict=False):
        if mine != theirs:
            return f"nodes 0 and {rank} do not train the same: node 0 has {mine!r}, node {rank} has {theirs!r}"
    longer, by = (first, 0) if len(first) > len(other) else (other, rank)
    extra = longer[min(len(first), len(other))]
    return f"nodes 0 and {rank} do not train the same: only node {by} has {extra!r}"
