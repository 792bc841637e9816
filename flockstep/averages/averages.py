"""Averages: every node's vector in, (nearly) their mean out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.codecs.codec import Codec
from flockstep.codecs.coder import coder_for
from flockstep.codecs.tail import trained_of, with_tail, without_tail
from flockstep.errors import FlockstepError
from flockstep.flock import Flock
from flockstep.message import Message
from flockstep.node import Node
from flockstep.parts.gossip_round import gained
from flockstep.parts.suitability import MEANS, MODELS, codec_for, unsuited
from flockstep.strategy import Mean
from flockstep.topologies import Graph, Topology


@dataclass(frozen=True)
class Exact:
    """The mean of all nodes' vectors in full precision, by a ring of chunks.

    Every node sends 2 (n-1)/n times the vector, for n nodes.
    """

    row_wise: ClassVar[bool] = True

    def start(self, node: Node, channel: str = "model") -> Mean:
        """The plain collective."""

        async def mean(v: Tensor) -> Tensor:
            return await node.mean(v, channel)

        return mean


@dataclass(frozen=True, kw_only=True)
class Coded:
    """The mean of all nodes' vectors in few bits: what ``Exact`` sends, each chunk coded.

        m_k = Q(mean_i Q(v_i,k))                   chunk k of the mean, taken by node k; Q: coded and decoded

    Node k gets chunk k from every node, coded, averages in full precision, and gives the coded mean to every node. All
    nodes decode the same messages, so all hold the same result.

    Args:
        codec: How vectors become bytes (see ``fs.codecs``). Not ``Modular``, whose receivers must be able to ask again;
            ``TopK`` for gradients and changes only, and better in ``Compensated``.

    Example:
        fs.LocalSGD(period=8, average=fs.averages.Coded(codec=fs.codecs.Cast(dtype="bf16")))
    """

    codec: Codec

    def __post_init__(self) -> None:
        codec_for(self, self.codec, MEANS, such_as="Cast()", instead="Stochastic(bits=8) or Cast()")

    @property
    def unsuited(self) -> Mapping[str, str]:
        """What its codec is not for."""
        return unsuited(self.codec)

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
    if node.elastic:
        raise FlockstepError(
            "an average in few bits gives every node a part of the work, and needs them all: not in an elastic run\n"
            "  take average=Exact(), or a run that is not elastic",
            rank=node.rank,
        )
    *for_nodes, for_all = encoders
    # Of what trains and of the statistics, which go in full, a chunk each.
    trained = trained_of(v, node)
    chunks, tails = v[:trained].tensor_split(node.size), v[trained:].tensor_split(node.size)
    outgoing = [with_tail(encode(c), t) for encode, c, t in zip(for_nodes, chunks, tails, strict=True)]

    def read(message: Message, like: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        inner, rest = without_tail(message, like, tail.numel())
        return codec.decode(inner, like), rest

    gathered = await node.exchange(outgoing, f"{channel}/gather")
    # Halves are summed as floats: sums of many lose more than sending them does.
    mine = (chunks[node.rank], tails[node.rank])
    totals = [torch.zeros_like(part, dtype=torch.promote_types(v.dtype, torch.float32)) for part in mine]
    for message in gathered:
        for total, part in zip(totals, read(message, *mine), strict=True):
            total += part
    mean, mean_tail = ((total / node.size).to(v.dtype) for total in totals)
    means = await node.exchange([with_tail(for_all(mean), mean_tail)] * node.size, f"{channel}/spread")
    parts = [read(message, c, t) for message, c, t in zip(means, chunks, tails, strict=True)]
    return torch.cat([part for part, _ in parts] + [rest for _, rest in parts])


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """One round of gossip in place of the mean: every node averages with its neighbours.

        x_i <- x_i + sum_j w_ij (Q(x_j) - Q(x_i))

    w_ij are the weights of the topology, Q is the codec. Nodes get different results; their mean is the mean, whatever
    the codec does.

    Args:
        topology: Which nodes are neighbours (see ``fs.topologies``).
        codec: How vectors become bytes (see ``fs.codecs``). Not ``TopK``.

    Example:
        fs.DataParallel(average=fs.averages.Mixed(topology=fs.topologies.Ring(), codec=fs.codecs.Raw()))
    """

    row_wise: ClassVar[bool] = True

    topology: Topology
    codec: Codec

    def __post_init__(self) -> None:
        check.has(self, "topology", self.topology, "peers", "weights", kind="a topology")
        # Whatever it mixes, it moves towards what was sent, as models do.
        codec_for(self, self.codec, MODELS, such_as="Cast()", instead="Modular(bits=8), Stochastic(bits=8) or Cast()")

    def start(self, node: Node, channel: str = "model") -> Mean:
        """One message to and from each neighbour per round."""
        round, coder = 0, coder_for(self.codec, node, node.params, of=channel, by_rounds=True)

        async def mean(v: Tensor) -> Tensor:
            nonlocal round
            round += 1
            if isinstance(node, Flock):
                return await node.mix(v, _rows(self.topology, node.size, round - 1))
            total = (await gained(node, self.topology, round - 1, v, coder)).add_(v)
            coder.settle()
            return total.to(v.dtype)

        return mean


def _rows(topology: Topology, size: int, round: int) -> tuple[dict[int, float], ...]:
    """The mixing matrix, row by row."""
    if isinstance(topology, Graph):
        return _rows_of_graph(topology, size)
    return tuple(topology.weights(rank, size, round) for rank in range(size))


@lru_cache(maxsize=64)
def _rows_of_graph(graph: Graph, size: int) -> tuple[dict[int, float], ...]:
    # The same in every round.
    return tuple(graph.weights(rank, size) for rank in range(size))
