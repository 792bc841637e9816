"""An update as bytes: what comes back, what it costs, and what is refused."""

import math

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from flockstep.lda.core.topics import Update
from flockstep.lda.nodes import update_codec

V = 400
SHAPES = [(0, 7), (1, 1), (2, 2), (3, 7), (1, 200), (5, 200), (7, 300)]


def update(rows, topics, seed=0, share=1.0, scale=10.0):
    """Words in no order; only a share of topics has anything."""
    rng = np.random.default_rng(seed)
    told = rng.gamma(0.3, scale, (rows, topics)).astype(np.float32)
    told *= rng.random((rows, topics)) < share
    told[:, 0] = np.maximum(told[:, 0], np.float32(0.5))
    words = rng.choice(V, rows, replace=False).astype(np.int32)
    return Update(log_decay=-0.25, words=words, statistics=told, totals=told.sum(0, dtype=np.float64))


def dense(given):
    table = np.zeros((V, given.totals.size))
    table[given.words] = given.statistics
    return table


def sent(given, bits, seed=0, least=0.0):
    data = update_codec.encode(given, n_words=V, bits=bits, rng=np.random.default_rng(seed), least=least)
    return data, update_codec.decode(data, n_words=V, n_topics=given.totals.size)


@pytest.mark.parametrize("share", [1.0, 0.4, 0.02])
@pytest.mark.parametrize(("rows", "topics"), SHAPES)
def test_32_bits_are_exact(rows, topics, share):
    given = update(rows, topics, share=share)
    _, back = sent(given, 32)
    np.testing.assert_array_equal(dense(back), dense(given))
    np.testing.assert_array_equal(back.totals, given.totals)
    assert back.log_decay == given.log_decay


@pytest.mark.parametrize(("bits", "step"), [(16, 2**-8), (8, 2**-3)])
@pytest.mark.parametrize("share", [1.0, 0.4, 0.02])
@pytest.mark.parametrize(("rows", "topics"), SHAPES)
def test_fewer_bits_are_within_a_step(rows, topics, share, bits, step):
    given = update(rows, topics, share=share)
    _, back = sent(given, bits)
    ours, exact = dense(back), dense(given)
    smallest = max(exact.max(), 0) * 2.0**-31
    assert (np.abs(ours - exact) <= step * exact + smallest).all()
    assert (ours >= 0).all()
    np.testing.assert_array_equal(back.totals, given.totals)


@pytest.mark.parametrize(("bits", "least"), [(8, 0.0), (16, 0.0), (8, 3.0), (16, 3.0)])
def test_fewer_bits_are_right_on_average(bits, least):
    given = update(40, 50, scale=3.0)
    exact, runs = dense(given), 400
    drawn = np.array([dense(sent(given, bits, seed, least)[1]) for seed in range(runs)])
    # Bernstein's bound for a coin between two neighbours, at one in a million for all 2,000 numbers together.
    gap = np.where(exact < least, 1.125 * least, np.maximum(exact * (0.125 if bits == 8 else 2**-8), 1e-6))
    bound = math.log(2 * 2000 * 1e6)
    assert (np.abs(drawn.mean(0) - exact) <= np.sqrt(2 * exact * gap * bound / runs) + gap * bound / runs).all()
    # Their sum is right, much more closely than each of them.
    spread = drawn.sum((1, 2)).std() / math.sqrt(runs)
    assert abs(drawn.sum((1, 2)).mean() - exact.sum()) < 4 * spread
    assert drawn[(drawn > 0)].min() >= 0.87 * min(least or np.inf, exact[exact > 0].min())


def test_what_is_next_to_nothing_costs_next_to_nothing():
    given = update(100, 100, scale=0.05)
    plain, _ = sent(given, 8)
    short, back = sent(given, 8, least=1.0)
    assert short.size < 0.3 * plain.size
    assert back.words.size <= given.words.size


def test_sizes():
    full, few = update(50, 100), update(50, 100, share=0.02)
    head = 28 + 800
    # A step and a count for each word, and a byte for each topic.
    assert head + 50 * 100 < sent(full, 8)[0].size <= head + 50 * (100 + 4)
    assert sent(full, 32)[0].size <= head + 50 * (400 + 4)
    told = int((few.statistics > 0).sum())
    assert sent(few, 8)[0].size <= head + 50 * 4 + 2 * told


def test_a_table_that_leaves_nothing_of_the_one_before():
    given = update(3, 7)
    _, back = sent(Update(**{**vars(given), "log_decay": -math.inf}), 32)
    assert back.log_decay == -math.inf


@pytest.mark.parametrize("bits", update_codec.WIDTHS)
@pytest.mark.parametrize("share", [1.0, 0.4, 0.02])
def test_hostile_bytes(bits, share):
    """Cut off, longer, or with any byte another: refused, or read as something that makes sense."""
    rng = np.random.default_rng(1)
    data, _ = sent(update(6, 40, share=share), bits)
    for length in range(data.size):
        with pytest.raises(ValueError, match="no update of topics"):
            update_codec.decode(data[:length], n_words=V, n_topics=40)
    with pytest.raises(ValueError, match="no update of topics"):
        update_codec.decode(np.append(data, np.uint8(0)), n_words=V, n_topics=40)
    refused = 0
    for at in range(data.size):
        wrong = data.copy()
        wrong[at] ^= np.uint8(rng.integers(1, 256))
        try:
            back = update_codec.decode(wrong, n_words=V, n_topics=40)
        except ValueError:
            refused += 1
        else:
            assert (np.diff(back.words) > 0).all()
            assert ((back.words >= 0) & (back.words < V)).all()
            assert (back.statistics >= 0).all()
            assert np.isfinite(back.statistics).all()
            assert np.isfinite(back.totals).all()
    assert refused > 20


def test_of_another_model():
    data, _ = sent(update(3, 7), 16)
    with pytest.raises(ValueError, match="400 words and 7 topics, not 401 and 7"):
        update_codec.decode(data, n_words=V + 1, n_topics=7)
    with pytest.raises(ValueError, match="not 400 and 6"):
        update_codec.decode(data, n_words=V, n_topics=6)


def test_noise():
    rng = np.random.default_rng(0)
    for size in (0, 1, 28, 100, 1000):
        with pytest.raises(ValueError, match="no update of topics"):
            update_codec.decode(rng.integers(256, size=size).astype(np.uint8), n_words=V, n_topics=3)
