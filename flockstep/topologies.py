"""Topologies: who talks to whom, and how much each counts.

A topology is pure: every node works out the same graph by itself, from the same arguments. Mixing weights are
symmetric and doubly stochastic, so mixing leaves the mean of all nodes where it was.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flockstep import check

__all__ = ["Complete", "Edges", "Exponential", "Hypercube", "Random", "Ring", "Star", "Topology", "Torus"]


class Topology(Protocol):
    """What a topology is: who talks to whom in a round, and how much each counts.

    Every node works it out by itself, and all come to the same graph. ``flockstep.testing.check_topology`` checks one
    of your own. Weights are symmetric, and each row sums to 1.

    Example:
        fs.topologies.Ring().peers(0, 8)  # (1, 7)
        fs.topologies.Ring().weights(0, 8)  # {0: 1/3, 1: 1/3, 7: 1/3}
    """

    def peers(self, rank: int, size: int, round: int = 0) -> tuple[int, ...]:
        """The nodes this one talks to, sorted, without itself."""
        ...

    def weights(self, rank: int, size: int, round: int = 0) -> dict[int, float]:
        """What this node gives each peer, and itself, in a weighted mean: a row of the mixing matrix."""
        ...


class Graph(ABC):
    """An undirected graph, the same in every round: a subclass only says who a node's neighbours are."""

    @abstractmethod
    def neighbours(self, rank: int, size: int) -> set[int]:
        """The nodes joined to this one; itself is left out where it is named."""

    def peers(self, rank: int, size: int, round: int = 0) -> tuple[int, ...]:
        """The nodes this one talks to, sorted, without itself."""
        rank, size = _place(self, rank, size, round)
        return tuple(sorted(self.neighbours(rank, size) - {rank}))

    def weights(self, rank: int, size: int, round: int = 0) -> dict[int, float]:
        """Metropolis-Hastings: w_ij = 1 / (1 + max(degree_i, degree_j)), and the rest to itself."""
        rank, size = _place(self, rank, size, round)
        peers = self.peers(rank, size, round)
        degrees = {peer: max(len(peers), len(self.peers(peer, size, round))) for peer in peers}
        shares = {peer: 1.0 / (1 + degree) for peer, degree in degrees.items()}
        return dict(sorted({**shares, rank: 1.0 - math.fsum(shares.values())}.items()))


@dataclass(frozen=True, kw_only=True)
class Complete(Graph):
    """Every node with every other, with equal weights: one round of mixing is the exact mean."""

    def neighbours(self, rank: int, size: int) -> set[int]:
        """All the others."""
        return set(range(size))

    def weights(self, rank: int, size: int, round: int = 0) -> dict[int, float]:
        """The same for all: 1 / size."""
        _, size = _place(self, rank, size, round)
        return dict.fromkeys(range(size), 1.0 / size)


@dataclass(frozen=True, kw_only=True)
class Ring(Graph):
    """Each node with the one before and the one after it."""

    def neighbours(self, rank: int, size: int) -> set[int]:
        """rank - 1 and rank + 1, around the end."""
        return {(rank - 1) % size, (rank + 1) % size}


@dataclass(frozen=True, kw_only=True)
class Torus(Graph):
    """A grid of ``rows`` x (size / rows) nodes that goes around at its edges.

    Args:
        rows: Rows of the grid; it must divide the number of nodes. None: as square as that number allows. A prime
            number of nodes has one row: a ring.

    Example:
        fs.Gossip(topology=fs.topologies.Torus(rows=2))  # 8 nodes: 2 x 4
    """

    rows: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            check.whole(self, "rows", self.rows)

    def neighbours(self, rank: int, size: int) -> set[int]:
        """Left and right in the row, above and below in the column."""
        rows = self._rows(size)
        columns = size // rows
        row, column = divmod(rank, columns)
        beside = {row * columns + (column + step) % columns for step in (-1, 1)}
        return beside | {(row + step) % rows * columns + column for step in (-1, 1)}

    def _rows(self, size: int) -> int:
        if self.rows is None:
            return next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)
        if size % self.rows:
            raise ValueError(f"Torus.rows must divide size {size}, got {self.rows}")
        return self.rows


@dataclass(frozen=True, kw_only=True)
class Exponential(Graph):
    """Each node with those 1, 2, 4, 8, ... places away: few neighbours, and news travels in few rounds."""

    def neighbours(self, rank: int, size: int) -> set[int]:
        """rank +- 2^i modulo size, for every 2^i below size."""
        # Shifts, because a logarithm in floating point can miss by one.
        steps = [1 << i for i in range((size - 1).bit_length())]
        return {(rank + step) % size for step in steps} | {(rank - step) % size for step in steps}


@dataclass(frozen=True, kw_only=True)
class Star(Graph):
    """One node in the centre with all the others, and no other edges.

    Args:
        centre: Rank of the node in the centre.

    Example:
        fs.Gossip(topology=fs.topologies.Star(centre=0))
    """

    centre: int = 0

    def __post_init__(self) -> None:
        check.whole(self, "centre", self.centre, at_least=0)

    def neighbours(self, rank: int, size: int) -> set[int]:
        """Everybody for the centre, the centre for everybody."""
        if self.centre >= size:
            raise ValueError(f"Star.centre must be below size {size}, got {self.centre}")
        return set(range(size)) if rank == self.centre else {self.centre}


@dataclass(frozen=True, kw_only=True)
class Random(Graph):
    """A random connected graph in which every node has ``degree`` neighbours; the same for the same seed and size.

    A node alone has no neighbours.

    Args:
        degree: Neighbours of each node: below the number of nodes, even where that is odd, and at least 2 for more than
            2 nodes. One less than the number of nodes gives the complete graph.
        seed: Seed from which every node draws the same graph.

    Example:
        fs.Gossip(topology=fs.topologies.Random(degree=4, seed=0))
    """

    degree: int
    seed: int = 0

    def __post_init__(self) -> None:
        check.whole(self, "degree", self.degree)
        check.whole(self, "seed", self.seed, at_least=0)

    def neighbours(self, rank: int, size: int) -> set[int]:
        """The ends of this node's edges."""
        if size == 1:
            return set()
        if self.degree >= size:
            raise ValueError(f"Random.degree must be below size {size}, got {self.degree}")
        if self.degree * size % 2:
            raise ValueError(f"Random.degree must be even for {size} nodes, got {self.degree}")
        if self.degree == 1 and size > 2:
            raise ValueError(f"Random.degree must be at least 2 to connect {size} nodes, got 1")
        return set(_random_regular(self.degree, size, self.seed)[rank])


def mixing_matrix(topology: Topology, size: int, round: int = 0) -> npt.NDArray[np.float64]:
    """W with W[i, j] the weight node i gives node j: one round of mixing is ``W @ x``."""
    matrix = np.zeros((size, size))
    for rank in range(size):
        for peer, weight in topology.weights(rank, size, round).items():
            matrix[rank, peer] = weight
    return matrix


def spectral_gap(topology: Topology, size: int) -> float:
    """1 - the second largest |eigenvalue| of the mixing matrix: 1 mixes in one round, 0 never does."""
    matrix = mixing_matrix(topology, size)
    symmetric = np.array_equal(matrix, matrix.T)
    values = np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix)
    others = np.sort(np.abs(values))[:-1]
    return max(0.0, 1.0 - float(others[-1])) if others.size else 1.0


def components(topology: Topology, size: int) -> list[list[int]]:
    """The parts of the graph no edge joins, each sorted, in the order of their first node."""
    return components_of([topology.peers(rank, size) for rank in range(size)])


def components_of(peers: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same of a graph given as each node's peers."""
    found: list[list[int]] = []
    seen: set[int] = set()
    for first in range(len(peers)):
        if first in seen:
            continue
        part, waiting = {first}, [first]
        while waiting:
            new = set(peers[waiting.pop()]) - part
            part |= new
            waiting += new
        seen |= part
        found.append(sorted(part))
    return found


def _place(topology: Graph, rank: int, size: int, round: int) -> tuple[int, int]:
    """Rank and size, checked, as plain ints whatever kind of whole numbers they came as."""
    size = check.whole(topology, "size", size)
    rank = check.whole(topology, "rank", rank, at_least=0)
    check.whole(topology, "round", round, at_least=0)
    if rank >= size:
        raise ValueError(f"{type(topology).__name__}.rank must be below size {size}, got {rank}")
    return rank, size


@lru_cache(maxsize=64)
def _random_regular(degree: int, size: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Shuffle the edges of a regular graph, keeping every degree, until it is mixed and connected."""
    steps = [*range(1, degree // 2 + 1), *([size // 2] if degree % 2 else [])]
    edges = list(dict.fromkeys(_edge(rank, (rank + step) % size) for step in steps for rank in range(size)))
    # Raw bits, because numpy promises them alike in every version, and all nodes must draw the same graph.
    bits = np.random.PCG64([seed, degree, size])
    switches = 10 * len(edges)
    while True:
        draws = bits.random_raw(2 * switches) % np.uint64(2 * len(edges))
        _switch(edges, draws.tolist())
        peers: list[list[int]] = [[] for _ in range(size)]
        for a, b in edges:
            peers[a].append(b)
            peers[b].append(a)
        if len(components_of(peers)) == 1:
            return tuple(tuple(sorted(ends)) for ends in peers)
        switches = len(edges)


def _switch(edges: list[tuple[int, int]], draws: list[int]) -> None:
    """Turn each drawn pair of edges a-b, c-d into a-d, c-b, where that gives no loop or double edge."""
    present = set(edges)
    for first, second in zip(draws[::2], draws[1::2], strict=True):
        a, b = edges[first // 2]
        # The lowest bit turns an edge around: without it half of the switches could never happen.
        c, d = edges[second // 2] if second % 2 else edges[second // 2][::-1]
        new = _edge(a, d), _edge(c, b)
        if len({a, b, c, d}) == 4 and new[0] not in present and new[1] not in present:
            present -= {edges[first // 2], edges[second // 2]}
            present |= set(new)
            edges[first // 2], edges[second // 2] = new


def _edge(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


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
    """A graph as a list of its edges. It must connect all nodes.

    Args:
        edges: Pairs of ranks; an edge goes both ways, whichever of its ends is named first.

    Example:
        fs.Gossip(topology=fs.topologies.Edges([(0, 1), (1, 2), (2, 3)]))
    """

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
