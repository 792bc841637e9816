"""The compiled core against plain NumPy in double precision."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import lda_oracles as oracles
from scipy.special import gammaln
from scipy.special import psi as exact_psi

from flockstep.lda.core.bound import psi_and_log_gamma
from flockstep.lda.core.expectations import weights
from flockstep.lda.core.learner import Learner, Rules, first_gamma
from flockstep.lda.core.topics import Topics, Update
from flockstep.lda.core.training import Schedule, Trainer, usable_batch
from flockstep.lda.data.corpora import Corpus

ALPHA, PRIOR, TOPICS, ROUNDS = 0.3, 0.2, 7, 12
NOTHING_DROPPED = Rules(alpha=ALPHA, full_rounds=ROUNDS, rounds=ROUNDS, tolerance=0.0, negligible=-1.0)


def noisy(objective, n_words=50, seed=3):
    return Topics.noisy(n_words, TOPICS, prior=PRIOR, objective=objective, rng=np.random.default_rng(seed))


def trained(matrix, objective, size, rules=NOTHING_DROPPED, passes=1, threads=1, recorder=None):
    """Our table after some passes, and the oracle's."""
    corpus, topics = Corpus.of(matrix), noisy(objective)
    begin = topics.table().astype(np.float64)
    rng = np.random.default_rng(1)
    batches = [batch for _ in range(passes) for batch in corpus.batches(size, rng)]
    trainer = Trainer(topics, rules, Schedule(decay=0.7, offset=2.0), threads=threads)
    trainer.run(iter(batches), of=1000, recorder=recorder)
    given = []
    for batch in batches:
        gamma = np.empty((batch.chosen.size, TOPICS), np.float32)
        first_gamma(gamma, batch.seed)
        given.append((matrix.toarray()[batch.chosen].astype(float), gamma.astype(float)))
    expected = oracles.learn(
        given,
        begin,
        prior=PRIOR,
        alpha=ALPHA,
        of=1000,
        decay=0.7,
        offset=2.0,
        rounds=ROUNDS,
        objective=objective,
        full=rules.full_rounds,
    )
    return topics, expected


def test_exp_psi():
    x = np.geomspace(0.06, 1e9, 10_000).astype(np.float32)
    out = np.empty_like(x)
    weights(x, np.full_like(x, 2.0), True, out)
    np.testing.assert_allclose(out, 2 * np.exp(exact_psi(x.astype(float))), rtol=2e-5)


@pytest.mark.parametrize("x", [0.0, 1e-30, 1e-3, 0.01])
def test_exp_psi_of_next_to_nothing_is_next_to_nothing_and_not_subnormal(x):
    out = np.empty(1, np.float32)
    weights(np.array([x], np.float32), np.ones(1, np.float32), True, out)
    assert 1e-15 < out[0] < 1e-12


def test_psi_and_log_gamma():
    x = np.geomspace(1e-3, 1e8, 2_000)
    ours = np.array([psi_and_log_gamma(each) for each in x])
    np.testing.assert_allclose(ours[:, 0], exact_psi(x), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(ours[:, 1], gammaln(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
@pytest.mark.parametrize("size", [1, 2, 50, 120])
def test_one_batch_is_the_oracles(corpus, objective, size):
    # Under "cvb0" the rounds after the first four are of another kind.
    rules = replace(NOTHING_DROPPED, full_rounds=4) if objective == "cvb0" else NOTHING_DROPPED
    topics, expected = trained(corpus[:size], objective, size, rules)
    np.testing.assert_allclose(topics.table(), expected, rtol=1e-4)


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
@pytest.mark.parametrize("size", [1, 2, 7, 50])
@pytest.mark.cases(test=5)
def test_stamped_decay_is_the_dense_recursion(corpus, objective, size):
    topics, expected = trained(corpus[:20], objective, size, passes=3)
    np.testing.assert_allclose(topics.table(), expected, rtol=1e-3)
    np.testing.assert_allclose(topics.totals + PRIOR * topics.n_words, expected.sum(0), rtol=1e-4)
    np.testing.assert_allclose(topics.table().sum(0, dtype=float), expected.sum(0), rtol=1e-4)


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
def test_dropping_topics_changes_next_to_nothing(corpus, objective):
    rules = Rules(alpha=ALPHA, full_rounds=4, rounds=ROUNDS, tolerance=0.0, negligible=1e-3)
    topics, expected = trained(corpus, objective, 120, rules)
    # Half of a document's topics are dropped at a thousandth of a word each.
    error = np.abs(topics.table() - expected).sum() / expected.sum()
    assert error < 2e-4


def test_rows_nobody_touches_decay(corpus):
    topics = noisy("vb")
    before = topics.rows.copy()
    more, none = np.full((1, TOPICS), 2.0, np.float32), np.empty((0, TOPICS), np.float32)
    topics.fold(
        Update(log_decay=np.log(0.5), words=np.array([4], np.int32), statistics=more, totals=more[0].astype(float))
    )
    topics.fold(Update(log_decay=np.log(0.25), words=np.empty(0, np.int32), statistics=none, totals=np.zeros(TOPICS)))
    expected = before * 0.125
    expected[4] += 0.25 * 2
    np.testing.assert_allclose(topics.counts(np.arange(50, dtype=np.int32)), expected, rtol=1e-6)
    np.testing.assert_allclose(topics.settle(), expected, rtol=1e-6)
    np.testing.assert_allclose(topics.totals, expected.sum(0), rtol=1e-5)


def test_the_table_is_made_anew_only_when_something_was_folded_in():
    topics = noisy("vb")
    before = topics.table()
    assert topics.table() is before
    one = np.ones((1, TOPICS), np.float32)
    topics.fold(Update(log_decay=0.0, words=np.array([0], np.int32), statistics=one, totals=one[0].astype(float)))
    np.testing.assert_allclose(topics.table()[0], before[0] + 1, rtol=1e-6)


def test_a_rate_of_one_forgets_everything():
    topics = noisy("vb")
    one = np.ones((1, TOPICS), np.float32)
    topics.fold(Update(log_decay=-np.inf, words=np.array([0], np.int32), statistics=one, totals=one[0].astype(float)))
    expected = np.zeros((50, TOPICS))
    expected[0] = 1
    np.testing.assert_allclose(topics.settle(), expected, atol=1e-30)


def test_a_fold_that_comes_late_is_as_if_in_time():
    rng, folds = np.random.default_rng(0), []
    for log_decay in (-0.1, -0.7):
        s = rng.random((2, TOPICS)).astype(np.float32)
        folds.append(Update(log_decay=log_decay, words=np.array([1, 2], np.int32), statistics=s, totals=s.sum(0)))
    in_turn, late = noisy("vb"), noisy("vb")
    for fold in folds:
        in_turn.fold(fold)

    # The second thread has its turn while the first, whose turn was before, has not written yet.
    class Rows:
        wrote = False

    original = late._turn

    class Turn:
        def __enter__(self):
            original.__enter__()

        def __exit__(self, *error):
            original.__exit__(*error)
            if not Rows.wrote:
                Rows.wrote = True
                late.fold(folds[1])

    late._turn = Turn()
    late.fold(folds[0])
    late._turn = original
    np.testing.assert_allclose(late.settle(), in_turn.settle(), rtol=1e-5)
    np.testing.assert_allclose(late.totals, in_turn.totals, rtol=1e-6)


def test_threads_write_all_batches(corpus):
    """Lock-free threads lose a store now and then; totals never."""
    topics, _ = trained(corpus, "vb", 5, passes=4, threads=2)
    tokens, rate_of_all = topics.totals.sum(), 1.0
    schedule = Schedule(decay=0.7, offset=2.0)
    for _ in range(4 * 24):
        rate_of_all *= 1 - schedule.next()
    assert topics.log_decay == pytest.approx(np.log(rate_of_all))
    assert tokens == pytest.approx(topics.settle().sum(dtype=float), rel=0.05)
    assert (topics.rows >= 0).all()


def test_a_thread_that_fails_ends_all(corpus):
    def failing():
        yield from Corpus.of(corpus).batches(5, np.random.default_rng(0))
        raise RuntimeError("no more of this file")

    trainer = Trainer(noisy("vb"), NOTHING_DROPPED, Schedule(decay=0.7, offset=1.0), threads=2)
    with pytest.raises(RuntimeError, match="no more of this file"):
        trainer.run(failing(), of=100)


def test_memory_is_where_inference_begins_and_ends(corpus):
    topics, memory = noisy("vb"), np.full((120, TOPICS), 3.0, np.float32)
    batch = next(Corpus.of(corpus).batches(10, np.random.default_rng(0), memory=memory))
    Learner(topics, NOTHING_DROPPED).infer(batch)
    dense, table = corpus.toarray().astype(float), topics.table().astype(float)
    for document in batch.chosen:
        expected, _ = oracles.infer(
            dense[document], table, table.sum(0), ALPHA, np.full(TOPICS, 3.0), ROUNDS, "vb", ROUNDS
        )
        np.testing.assert_allclose(memory[document], expected, rtol=1e-4)
    assert (np.delete(memory, batch.chosen, 0) == 3.0).all()


@pytest.mark.parametrize(
    ("size", "threads", "documents", "used"),
    [(100, 1, 1000, 100), (300, 1, 1000, 250), (300, 2, 1000, 125), (9, 2, 3, 1)],
)
def test_batches_under_way_are_at_most_a_quarter(size, threads, documents, used):
    assert usable_batch(size, threads=threads, documents=documents) == used
