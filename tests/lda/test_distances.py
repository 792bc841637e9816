import math

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from flockstep.lda.evaluate.distances import distances, plane


def oracle(p, q):
    """Plain Python, word by word."""
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]

    def bits(row):
        return sum(a * math.log2(a / m) for a, m in zip(row, middle, strict=True) if a > 0)

    return math.sqrt(max(0.0, (bits(p) + bits(q)) / 2))


def topics(count, words=40, seed=0):
    rows = np.random.default_rng(seed).dirichlet(np.full(words, 0.1), count)
    rows[:, 3] = 0
    return rows / rows.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("piece", [1, 13, 10**6])
def test_distances_equal_plain_python_in_any_scale_and_any_pieces(monkeypatch, count, piece):
    from flockstep.lda.evaluate import distances as module

    monkeypatch.setattr(module, "_PIECE", piece)
    rows = topics(count)
    expected = [[oracle(p, q) for q in rows.tolist()] for p in rows.tolist()]
    assert distances(rows * 1000) == pytest.approx(np.array(expected), abs=1e-9)


def test_extremes():
    apart = distances([[1, 0, 0], [0, 2, 2], [5, 0, 0]])
    assert apart == pytest.approx(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]), abs=1e-12)


def test_with_little_effort_rare_words_count_as_one():
    rows = topics(5)
    kept = 10
    order = np.argsort(-rows.max(axis=0), kind="stable")
    lumped = np.concatenate([rows[:, order[:kept]], rows[:, order[kept:]].sum(axis=1, keepdims=True)], axis=1)
    rough = distances(rows, effort=kept * 5 * 4 / 2)
    assert rough == pytest.approx(distances(lumped), abs=1e-9)
    assert (rough <= distances(rows) + 1e-12).all()


def test_points_of_a_plane_come_back_with_their_distances():
    points = np.random.default_rng(1).normal(size=(6, 2))

    def between(places):
        return np.linalg.norm(places[:, None] - places[None], axis=2)

    assert between(plane(between(points))) == pytest.approx(between(points), abs=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_topics_have_a_map_too(count):
    apart = distances(topics(count))
    where = plane(apart)
    assert where.shape == (count, 2)
    assert np.linalg.norm(where[:, None] - where[None], axis=2) == pytest.approx(apart, abs=1e-7)
