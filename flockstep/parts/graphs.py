"""Two more graphs: the hypercube, and one the user draws."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flockstep import check
from flockstep.parts.topologies import Graph, components_of


@dataclass(frozen=True, kw_only=True)
class Hypercube(Graph):
    """Each node with those whose number differs in one binary digit; for 1, 2, 4, 8, ... nodes."""

    def neighbours(self, rank: int, size: int) -> set[int]:
        """rank with one digit turned over."""
        if size & (size - 1):
            raise ValueError(f"Hypercube.size must be a power of two, got {size}")
        return {rank ^ (1 << digit) for digit in range(size.bit_length() - 1)}


@dataclass(frozen=True)
class Edges(Graph):
    """A graph as a list of its edges: ``Edges([(0, 1), (1, 2)])``. It must connect all nodes."""

    edges: tuple[tuple[int, int], ...]

    def __init__(self, edges: Iterable[tuple[int, int]]) -> None:
        pairs = []
        for edge in edges:
            ends = tuple(edge)
            if len(ends) != 2:
                raise ValueError(f"Edges.edges must be pairs of nodes, got {edge!r}")
            a, b = (check.whole(self, "edges", end, at_least=0) for end in ends)
            if a == b:
                raise ValueError(f"Edges.edges must join two nodes, got {(a, b)}")
            pairs.append((min(a, b), max(a, b)))
        object.__setattr__(self, "edges", tuple(sorted(set(pairs))))

    def neighbours(self, rank: int, size: int) -> set[int]:
        """The other ends of this node's edges."""
        peers: list[list[int]] = [[] for _ in range(size)]
        for a, b in self.edges:
            if b >= size:
                raise ValueError(f"Edges.edges names node {b}, but there are {size} nodes, 0 to {size - 1}")
            peers[a].append(b)
            peers[b].append(a)
        parts = components_of(peers)
        if len(parts) > 1:
            one, other = (", ".join(map(str, part[:5])) + (" ..." if len(part) > 5 else "") for part in parts[:2])
            raise ValueError(
                f"Edges.edges must connect all {size} nodes, but no way leads from {{{one}}} to {{{other}}}\n"
                f"  join them, for instance with ({parts[0][0]}, {parts[1][0]})"
            )
        return set(peers[rank])
