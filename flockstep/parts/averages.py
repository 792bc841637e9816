"""Averages: every node's vector in, (nearly) their mean out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.flock import Flock
from flockstep.message import Message
from flockstep.node import Node
from flockstep.parts.codecs.codec import Codec
from flockstep.parts.topologies import Graph, Topology
from flockstep.strategy import Mean


@dataclass(frozen=True)
class Exact:
    """The mean itself, in full precision: a ring of chunks, 2 (n-1)/n of the vector sent per node."""

    row_wise: ClassVar[bool] = True

    def start(self, node: Node, channel: str = "model") -> Mean:
        """The plain collective."""

        async def mean(v: Tensor) -> Tensor:
            return await node.mean(v, channel)

        return mean


@dataclass(frozen=True, kw_only=True)
class Coded:
    """The mean in few bits: what Exact sends, each chunk coded.

    Each node averages one chunk: it gets that chunk from everybody, coded, averages in full precision, and gives the
    coded mean to everybody. All nodes decode the same messages, so all hold the same result.
    """

    codec: Codec

    def __post_init__(self) -> None:
        check.has(self, "codec", self.codec, "encode", "decode", kind="a codec")

    def start(self, node: Node, channel: str = "model") -> Mean:
        """Two exchanges per round: chunks in, means out."""

        def encode(v: Tensor) -> Message:
            return self.codec.encode(v, node.rng)

        async def mean(v: Tensor) -> Tensor:
            return await mean_of_chunks(v, node, channel, self.codec, [encode] * (node.size + 1))

        return mean


async def mean_of_chunks(
    v: Tensor, node: Node, channel: str, codec: Codec, encoders: Sequence[Callable[[Tensor], Message]]
) -> Tensor:
    """The round of a coded mean; ``encoders`` code the chunk for each node, and the last of them the mean."""
    *for_nodes, for_all = encoders
    chunks = list(v.tensor_split(node.size))
    own = chunks[node.rank]
    outgoing = [encode(chunk) for encode, chunk in zip(for_nodes, chunks, strict=True)]
    gathered = await node.exchange(outgoing, f"{channel}/gather")
    # Halves are summed as floats: sums of many lose more than sending them does.
    total = torch.zeros_like(own, dtype=torch.promote_types(own.dtype, torch.float32))
    for message in gathered:
        total += codec.decode(message, own)
    coded = for_all((total / node.size).to(own.dtype))
    means = await node.exchange([coded] * node.size, f"{channel}/spread")
    return torch.cat([codec.decode(message, chunk) for message, chunk in zip(means, chunks, strict=True)])


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """One round of gossip: x_i <- sum_j w_ij x_j over the neighbours of a topology. Not the mean, but its mean is."""

    row_wise: ClassVar[bool] = True

    topology: Topology
    codec: Codec

    def __post_init__(self) -> None:
        check.has(self, "topology", self.topology, "peers", "weights", kind="a topology")
        check.has(self, "codec", self.codec, "encode", "decode", kind="a codec")

    def start(self, node: Node, channel: str = "model") -> Mean:
        """One message to and from each neighbour per round."""
        round = 0

        async def mean(v: Tensor) -> Tensor:
            nonlocal round
            round += 1
            if isinstance(node, Flock):
                return await node.mix(v, _rows(self.topology, node.size, round - 1))
            return await self._mix(v, node, round - 1)

        return mean

    async def _mix(self, v: Tensor, node: Node, round: int) -> Tensor:
        weights = self.topology.weights(node.rank, node.size, round)
        peers = self.topology.peers(node.rank, node.size, round)
        message: Message = self.codec.encode(v, node.rng)
        for peer in peers:
            node.send(peer, message)
        mixed = v * weights[node.rank]
        for peer in peers:
            mixed += weights[peer] * self.codec.decode(await node.receive(peer), v)
        return mixed


def _rows(topology: Topology, size: int, round: int) -> tuple[dict[int, float], ...]:
    """The mixing matrix, row by row."""
    if isinstance(topology, Graph):
        return _rows_of_graph(topology, size)
    return tuple(topology.weights(rank, size, round) for rank in range(size))


@lru_cache(maxsize=64)
def _rows_of_graph(graph: Graph, size: int) -> tuple[dict[int, float], ...]:
    # The same in every round.
    return tuple(graph.weights(rank, size) for rank in range(size))
