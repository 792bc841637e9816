"""Topologies: known graphs, known spectra, and every size."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flockstep.testing import check_topology
from flockstep.topologies import (
    Complete,
    Exponential,
    Graph,
    Random,
    Ring,
    Star,
    Topology,
    Torus,
    components,
    mixing_matrix,
    spectral_gap,
)

ANY_SIZE: list[Graph] = [Complete(), Ring(), Torus(), Exponential(), Star()]
SOME_SIZES: list[Graph] = [
    Torus(rows=1),
    Torus(rows=2),
    Torus(rows=4),
    Star(centre=3),
    Random(degree=1),
    Random(degree=2, seed=7),
    Random(degree=3),
    Random(degree=4, seed=1),
    Random(degree=7),
]


@pytest.mark.parametrize("topology", ANY_SIZE + SOME_SIZES, ids=repr)
def test_every_topology_keeps_the_laws(topology: Topology) -> None:
    check_topology(topology)


@pytest.mark.parametrize("topology", ANY_SIZE, ids=repr)
def test_the_simple_ones_take_every_size(topology: Topology) -> None:
    check_topology(topology, sizes=range(1, 40))
    for size in range(1, 40):
        assert components(topology, size) == [list(range(size))]


@pytest.mark.parametrize("topology", [*ANY_SIZE, Random(degree=4)], ids=repr)
def test_a_node_alone_has_no_peers(topology: Topology) -> None:
    assert topology.peers(0, 1) == ()
    assert topology.weights(0, 1) == {0: 1.0}
    assert spectral_gap(topology, 1) == 1.0


@pytest.mark.parametrize("topology", ANY_SIZE, ids=repr)
def test_two_nodes_have_one_edge(topology: Topology) -> None:
    assert topology.peers(0, 2) == (1,)
    assert topology.peers(1, 2) == (0,)
    assert topology.weights(0, 2) == {0: 0.5, 1: 0.5}


def test_complete_is_the_exact_mean() -> None:
    assert set(Complete().weights(3, 7).values()) == {1 / 7}
    assert spectral_gap(Complete(), 9) == pytest.approx(1)
    x = np.arange(5.0)
    np.testing.assert_allclose(mixing_matrix(Complete(), 5) @ x, np.full(5, 2.0))


def test_ring() -> None:
    assert Ring().peers(0, 5) == (1, 4)
    assert Ring().peers(4, 5) == (0, 3)
    assert Ring().weights(0, 5) == pytest.approx({0: 1 / 3, 1: 1 / 3, 4: 1 / 3})


@pytest.mark.parametrize("size", [4, 5, 16, 27])
def test_the_spectrum_of_a_ring(size: int) -> None:
    # Circulant with 1/3 on three diagonals: eigenvalues 1/3 + 2/3 cos(2 pi k / n).
    values = [abs(1 / 3 + 2 / 3 * math.cos(2 * math.pi * k / size)) for k in range(1, size)]
    assert spectral_gap(Ring(), size) == pytest.approx(1 - max(values))


def test_the_spectrum_of_a_torus_and_a_star() -> None:
    assert spectral_gap(Torus(), 16) == pytest.approx(2 / 5)
    assert spectral_gap(Star(), 8) == pytest.approx(1 / 8)


def test_torus_is_as_square_as_can_be() -> None:
    assert Torus().peers(0, 12) == (1, 3, 4, 8)  # 3 x 4
    assert Torus().peers(5, 16) == (1, 4, 6, 9)  # 4 x 4
    assert Torus(rows=2).peers(0, 12) == (1, 5, 6)  # up and down meet in one node
    assert Torus(rows=12).peers(0, 12) == (1, 11)
    for prime in (3, 5, 7, 31):
        assert all(Torus().peers(rank, prime) == Ring().peers(rank, prime) for rank in range(prime))


def test_star() -> None:
    assert Star().peers(0, 4) == (1, 2, 3)
    assert Star(centre=2).peers(0, 4) == (2,)
    assert Star().weights(1, 4) == {0: 0.25, 1: 0.75}
    assert Star().weights(0, 4) == {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}


@pytest.mark.parametrize("size", [243, 125, 128, 127, 129, 6])
def test_exponential_neighbours_are_powers_of_two_away(size: int) -> None:
    def is_power_of_two(x: int) -> bool:
        return x > 0 and x & (x - 1) == 0

    for rank in (0, 1, size // 2, size - 1):
        away = [j for j in range(size) if is_power_of_two((j - rank) % size) or is_power_of_two((rank - j) % size)]
        assert Exponential().peers(rank, size) == tuple(away)


def test_exponential_at_243() -> None:
    """Three to the fifth, where a logarithm in floating point goes wrong: eight distances, two ways each."""
    peers = Exponential().peers(0, 243)
    assert peers == (1, 2, 4, 8, 16, 32, 64, 115, 128, 179, 211, 227, 235, 239, 241, 242)
    check_topology(Exponential(), sizes=(243,))


@pytest.mark.parametrize("power", [29, 31, 51, 64])
def test_exponential_counts_its_powers_in_integers(power: int) -> None:
    assert max(p for p in Exponential().peers(0, 2**power) if p <= 2 ** (power - 1)) == 2 ** (power - 1)
    # One more node, and a whole power more fits.
    assert 2**power in Exponential().peers(0, 2**power + 1)
    assert len(Exponential().peers(0, 2**power)) == 2 * power - 1


@settings(deadline=None)
@given(degree=st.integers(1, 9), size=st.integers(2, 24), seed=st.integers(0, 2**40))
def test_random_graphs_are_regular_simple_and_connected(degree: int, size: int, seed: int) -> None:
    topology = Random(degree=degree, seed=seed)
    if degree >= size or degree * size % 2 or (degree == 1 and size > 2):
        with pytest.raises(ValueError, match=r"Random\.degree must be"):
            topology.peers(0, size)
        return
    peers = [topology.peers(rank, size) for rank in range(size)]
    assert all(len(set(p)) == degree for p in peers)
    assert all(rank in peers[peer] and peer != rank for rank in range(size) for peer in peers[rank])
    assert components(topology, size) == [list(range(size))]


def test_random_depends_on_seed_size_and_degree_alone() -> None:
    def edges(seed: int) -> list[tuple[int, ...]]:
        return [Random(degree=4, seed=seed).peers(rank, 32) for rank in range(32)]

    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    assert edges(3) == edges(3)
    assert len({tuple(edges(seed)) for seed in range(10)}) == 10
    assert np.array_equal(np.random.get_state()[1], before)  # type: ignore[index,arg-type]


def test_random_draws_the_same_graph_in_every_version() -> None:
    """All nodes of a run must agree, whatever they have installed: this graph must never change."""
    graph = [Random(degree=3).peers(rank, 8) for rank in range(8)]
    assert graph[:4] == [(2, 3, 7), (2, 6, 7), (0, 1, 5), (0, 4, 5)]
    assert graph[4:] == [(3, 6, 7), (2, 3, 6), (1, 4, 5), (0, 1, 4)]


@pytest.mark.slow
def test_random_graphs_are_all_alike_likely() -> None:
    """Six nodes have 70 graphs of degree 3, all connected: 10 times K_{3,3} and 60 prisms."""
    seen: dict[tuple[tuple[int, ...], ...], int] = {}
    draws = 2100
    for seed in range(draws):
        graph = tuple(Random(degree=3, seed=seed).peers(rank, 6) for rank in range(6))
        seen[graph] = seen.get(graph, 0) + 1
    assert len(seen) == 70
    chi_square = sum((count - draws / 70) ** 2 / (draws / 70) for count in seen.values())
    # 69 degrees of freedom: mean 69, standard deviation 11.7.
    assert chi_square < 69 + 5 * math.sqrt(2 * 69)


def test_random_mixes_better_than_a_ring_of_the_same_degree() -> None:
    assert spectral_gap(Random(degree=4), 128) > 10 * spectral_gap(Ring(), 128)


def test_random_of_all_others_is_complete() -> None:
    assert Random(degree=4).peers(2, 5) == Complete().peers(2, 5)


@pytest.mark.parametrize(
    ("topology", "size", "sentence"),
    [
        (Random(degree=4), 4, "Random.degree must be below size 4, got 4"),
        (Random(degree=3), 5, "Random.degree must be even for 5 nodes, got 3"),
        (Random(degree=1), 6, "Random.degree must be at least 2 to connect 6 nodes, got 1"),
        (Torus(rows=5), 12, "Torus.rows must divide size 12, got 5"),
        (Star(centre=3), 3, "Star.centre must be below size 3, got 3"),
    ],
    ids=repr,
)
def test_sizes_that_cannot_be_are_refused(topology: Topology, size: int, sentence: str) -> None:
    for rank in range(size):
        for verb in (topology.peers, topology.weights):
            with pytest.raises(ValueError) as caught:
                verb(rank, size)
            assert str(caught.value) == sentence


@pytest.mark.parametrize("topology", [*ANY_SIZE, Random(degree=2)], ids=repr)
def test_places_are_checked(topology: Topology) -> None:
    name = type(topology).__name__
    for verb in (topology.peers, topology.weights):
        with pytest.raises(ValueError, match=f"{name}.rank must be below size 4, got 4"):
            verb(4, 4)
        with pytest.raises(ValueError, match=f"{name}.rank must be at least 0, got -1"):
            verb(-1, 4)
        with pytest.raises(ValueError, match=f"{name}.size must be at least 1, got 0"):
            verb(0, 0)
        with pytest.raises(ValueError, match=f"{name}.round must be at least 0, got -1"):
            verb(0, 4, -1)
        with pytest.raises(TypeError, match=f"{name}.rank must be a whole number, got True"):
            verb(True, 4)


def test_numpy_ranks_give_plain_numbers() -> None:
    peers = Ring().peers(np.int64(1), np.int64(4))  # type: ignore[arg-type]
    assert [type(peer) for peer in (*peers, *Ring().weights(np.int64(1), 4))] == [int] * 5  # type: ignore[arg-type]


def test_arguments_are_checked_at_construction() -> None:
    with pytest.raises(ValueError, match=r"Torus.rows must be at least 1, got 0"):
        Torus(rows=0)
    with pytest.raises(TypeError, match=r"Torus.rows must be a whole number, got 2.0"):
        Torus(rows=2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Random.degree must be at least 1, got 0"):
        Random(degree=0)
    with pytest.raises(ValueError, match=r"Random.seed must be at least 0, got -1"):
        Random(degree=2, seed=-1)
    with pytest.raises(ValueError, match=r"Star.centre must be at least 0, got -1"):
        Star(centre=-1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Star().centre = 1  # type: ignore[misc]


@settings(deadline=None)
@given(topology=st.sampled_from(ANY_SIZE), size=st.integers(1, 30), data=st.data())
def test_mixing_keeps_the_mean_and_narrows_the_spread(topology: Graph, size: int, data: st.DataObject) -> None:
    x = np.array(data.draw(st.lists(st.floats(-10, 10), min_size=size, max_size=size)))
    mixed = mixing_matrix(topology, size) @ x
    assert mixed.mean() == pytest.approx(x.mean(), abs=1e-12)
    assert np.linalg.norm(mixed - mixed.mean()) <= np.linalg.norm(x - x.mean()) + 1e-12


@settings(deadline=None)
@given(topology=st.sampled_from(ANY_SIZE[1:]), size=st.integers(1, 30), data=st.data())
def test_weights_are_metropolis_hastings(topology: Graph, size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    degrees = [len(topology.peers(node, size)) for node in range(size)]
    expected = {peer: Fraction(1, 1 + max(degrees[rank], degrees[peer])) for peer in topology.peers(rank, size)}
    expected[rank] = 1 - sum(expected.values(), Fraction(0))
    weights = topology.weights(rank, size)
    assert list(weights) == sorted(expected)
    assert weights == pytest.approx({node: float(weight) for node, weight in expected.items()}, abs=1e-15)


def test_a_graph_of_ones_own_needs_one_method() -> None:
    class Pairs(Graph):
        def neighbours(self, rank: int, size: int) -> set[int]:
            return {rank ^ 1} & set(range(size))

    assert components(Pairs(), 5) == [[0, 1], [2, 3], [4]]
    assert spectral_gap(Pairs(), 5) == pytest.approx(0)
    assert Pairs().weights(4, 5) == {4: 1.0}


def test_the_gap_of_weights_that_are_not_symmetric() -> None:
    class Turn:
        def peers(self, rank: int, size: int, round: int = 0) -> tuple[int, ...]:
            return ((rank + 1) % size,)

        def weights(self, rank: int, size: int, round: int = 0) -> dict[int, float]:
            return {(rank + 1) % size: 1.0}

    assert spectral_gap(Turn(), 4) == pytest.approx(0)
