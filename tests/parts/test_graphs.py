"""The hypercube, and graphs that users draw."""

import pytest

from flockstep.testing import check_topology
from flockstep.topologies import Edges, Hypercube, Ring, spectral_gap


@pytest.mark.parametrize("topology", [Hypercube(), Edges([]), Edges([(0, 1)]), Edges([(0, 1), (2, 1), (2, 3), (3, 4)])])
def test_the_laws(topology):
    check_topology(topology)


def test_a_hypercube_turns_over_one_digit():
    assert Hypercube().peers(5, 8) == (1, 4, 7)
    assert Hypercube().peers(0, 1) == ()
    with pytest.raises(ValueError, match=r"Hypercube\.size must be a power of two, got 6"):
        Hypercube().peers(0, 6)


@pytest.mark.parametrize("size", [2, 5, 8])
def test_a_ring_drawn_by_hand_is_a_ring(size):
    drawn = Edges((rank, (rank + 1) % size) for rank in range(size))
    for rank in range(size):
        assert drawn.peers(rank, size) == Ring().peers(rank, size)
        assert drawn.weights(rank, size) == Ring().weights(rank, size)
    assert spectral_gap(drawn, size) == pytest.approx(spectral_gap(Ring(), size))


def test_the_order_of_edges_and_ends_does_not_matter():
    assert Edges([(2, 1), (0, 1), (1, 0)]) == Edges([(0, 1), (1, 2)])


@pytest.mark.parametrize(
    ("edges", "size", "sentence"),
    [
        ([(0, 1), (2, 3)], 4, r"no way leads from \{0, 1\} to \{2, 3\}"),
        ([(0, 1)], 3, r"no way leads from \{0, 1\} to \{2\}"),
        ([(0, 5)], 3, "names node 5, but there are 3 nodes"),
    ],
)
def test_a_graph_that_does_not_fit_is_refused_by_name(edges, size, sentence):
    with pytest.raises(ValueError, match=sentence):
        Edges(edges).peers(0, size)


@pytest.mark.parametrize(
    ("edges", "kind", "sentence"),
    [
        ([(1, 1)], ValueError, "must join two nodes"),
        ([(0, 1, 2)], ValueError, "must be pairs"),
        ([(0, -1)], ValueError, "at least 0"),
        ([(0, 1.5)], TypeError, "whole number"),
    ],
)
def test_bad_arguments(edges, kind, sentence):
    with pytest.raises(kind, match=sentence):
        Edges(edges)
