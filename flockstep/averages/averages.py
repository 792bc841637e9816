"""The mean of all nodes' vectors in full, and one over a graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from flockstep import check
from flockstep.codecs.codec import Codec
from flockstep.codecs.coder import coder_for
from flockstep.flock import Flock
from flockstep.node import Node
from flockstep.parts.gossip_round import gained
from flockstep.parts.suitability import MODELS, codec_for
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
