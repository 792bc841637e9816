import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flockstep.workloads.sharding import deal


def split(items, size, heterogeneity, *, seed=0, order=None):
    return [deal(items, r, size, heterogeneity=heterogeneity, seed=seed, order=order) for r in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 100])
@pytest.mark.parametrize("heterogeneity", [0.0, 0.3, 0.77, 1.0])
def test_every_item_goes_to_one_node(size, heterogeneity):
    parts = split(100, size, heterogeneity)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(100))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.data(), st.floats(0, 1), st.integers(0, 9))
@pytest.mark.slow
def test_it_is_a_partition_and_even(items, data, heterogeneity, seed):
    size = data.draw(st.integers(1, min(items, 40)))
    parts = split(items, size, heterogeneity, seed=seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(items))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_full_heterogeneity_by_position_is_contiguous():
    assert [part.tolist() for part in split(7, 3, 1.0)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_full_heterogeneity_by_label_sorts_labels():
    labels = np.random.default_rng(0).permutation(np.repeat([5, -1, 2, 9], 25))
    assert [set(labels[part]) for part in split(100, 4, 1.0, order=labels)] == [{-1}, {2}, {5}, {9}]


def test_no_heterogeneity_mixes_labels():
    labels = np.repeat([-1, 1], 500)
    for part in split(1000, 2, 0.0, order=labels):
        assert abs(labels[part].mean()) < 0.15


def test_the_degree_lies_between():
    labels = np.repeat([-1, 1], 5000)
    first = deal(10_000, 0, 2, heterogeneity=0.4, seed=0, order=labels)
    assert labels[first].mean() == pytest.approx(-0.4, abs=0.05)


def test_same_seed_same_split():
    one, same, other = (split(50, 3, 0.5, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_ties_are_broken_at_random():
    first = deal(1000, 0, 2, heterogeneity=1.0, seed=0, order=np.zeros(1000))
    assert 400 < first.mean() < 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 11}, r"deal\.size must not exceed the 10 items there are to deal, got 11"),
        ({"rank": 2}, r"deal\.rank must be below size 2, got 2"),
        ({"rank": -1}, r"deal\.rank must be at least 0, got -1"),
        ({"size": 0}, r"deal\.size must be at least 1, got 0"),
        ({"items": 0}, r"deal\.items must be at least 1, got 0"),
        ({"heterogeneity": 1.5}, r"deal\.heterogeneity must be between 0 and 1, got 1\.5"),
        ({"seed": -1}, r"deal\.seed must be at least 0, got -1"),
        (
            {"order": np.arange(3)},
            r"deal\.order must have one entry for each of the 10 items, got shape \(3,\)",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    good = {"items": 10, "rank": 0, "size": 2, "heterogeneity": 0.5, "seed": 0}
    with pytest.raises(ValueError, match=message):
        deal(**{**good, **arguments})
