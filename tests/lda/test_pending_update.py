"""Many updates as one pair: against plain NumPy, and who owns the arrays meanwhile."""

import threading

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from flockstep.lda.core.learner import Learner, Rules
from flockstep.lda.core.topics import Topics, Update
from flockstep.lda.core.training import Schedule, Trainer
from flockstep.lda.data.corpora import Corpus
from flockstep.lda.nodes import pending_update as module
from flockstep.lda.nodes.pending_update import PendingUpdate

WORDS, TOPICS = 30, 4


def drawn(seed, log_decay=None):
    """Statistics of some words."""
    rng = np.random.default_rng(seed)
    words = rng.choice(WORDS, rng.integers(1, WORDS), replace=False).astype(np.int32)
    told = rng.random((words.size, TOPICS)).astype(np.float32)
    decay = -float(rng.random()) if log_decay is None else log_decay
    return Update(log_decay=decay, words=words, statistics=told, totals=told.sum(0, dtype=float))


def folded(table, updates):
    """n <- a n + s, one after another."""
    for update in updates:
        table = table * np.exp(update.log_decay)
        table[update.words] += update.statistics
    return table


def recorded(updates):
    journal = PendingUpdate(WORDS, TOPICS)
    for update in updates:
        journal.record(update)
    return journal


@pytest.mark.parametrize("kept", [1, 2**26])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_journal_is_the_same_change_in_one_pair(monkeypatch, count, kept):
    monkeypatch.setattr(module, "_MOST_KEPT", kept)
    updates = [drawn(seed) for seed in range(count)]
    journal = recorded(updates)
    pair, begin = journal.sum(), np.random.default_rng(9).random((WORDS, TOPICS))
    np.testing.assert_allclose(folded(begin, [pair]), folded(begin, updates), rtol=1e-5)
    assert sorted(pair.words) == sorted({word for update in updates for word in update.words})
    np.testing.assert_allclose(pair.totals, pair.statistics.sum(0), rtol=1e-5)
    assert pair.log_decay == pytest.approx(sum(update.log_decay for update in updates))


def test_what_is_kept_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(module, "_MOST_KEPT", 10 * WORDS * TOPICS)
    journal, most = PendingUpdate(WORDS, TOPICS), 0
    for seed in range(200):
        journal.record(drawn(seed))
        most = max(most, journal._page.numbers)
    assert 9 * WORDS * TOPICS < most <= 11 * WORDS * TOPICS


def test_an_update_that_forgets_everything():
    """Nothing of what was before is left, nor any number that is none."""
    updates = [drawn(0), drawn(1, -np.inf), drawn(2)]
    pair = recorded(updates).sum()
    assert np.isfinite(pair.log_decay)
    np.testing.assert_allclose(
        folded(np.ones((WORDS, TOPICS)), [pair]), folded(np.zeros((WORDS, TOPICS)), updates[1:]), atol=1e-6
    )


def test_a_journal_begins_anew_when_it_is_taken():
    journal = recorded([drawn(0), drawn(1)])
    first, nothing = journal.take(), journal.take().sum()
    assert (nothing.words.size, nothing.log_decay, nothing.totals.sum()) == (0, 0, 0)
    journal.record(again := drawn(2))
    np.testing.assert_allclose(journal.sum().statistics, again.statistics, rtol=1e-6)
    np.testing.assert_array_equal(journal.sum().words, again.words)
    assert first.sum().log_decay == pytest.approx(drawn(0).log_decay + drawn(1).log_decay)


def test_what_was_taken_can_be_put_back_before_the_rest():
    updates = [drawn(seed) for seed in range(4)]
    journal = recorded(updates[:2])
    earlier = journal.take()
    for update in updates[2:]:
        journal.record(update)
    journal.put_before(earlier)
    begin = np.ones((WORDS, TOPICS))
    np.testing.assert_allclose(folded(begin, [journal.sum()]), folded(begin, updates), rtol=1e-5)


def test_threads_record_every_update():
    journal, each = PendingUpdate(WORDS, TOPICS), 200
    update = drawn(0, log_decay=0.0)
    threads = [threading.Thread(target=lambda: [journal.record(update) for _ in range(each)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(journal.sum().totals, 4 * each * update.totals)


def topics():
    return Topics.noisy(50, TOPICS, prior=0.1, objective="vb", rng=np.random.default_rng(3))


@pytest.mark.parametrize("size", [7, 20])
def test_a_journal_has_every_batch_of_a_trainer(corpus, size):
    documents, mine, elsewhere, journal = Corpus.of(corpus[:20]), topics(), topics(), PendingUpdate(50, TOPICS)
    trainer = Trainer(mine, Rules(alpha=0.1), Schedule(decay=0.7, offset=2.0))
    for seed in range(3):
        trainer.run(documents.batches(size, np.random.default_rng(seed)), of=1000, recorder=journal)
    pair = journal.sum()
    assert sorted(pair.words) == sorted(np.unique(corpus[:20].indices))
    elsewhere.fold(pair)
    np.testing.assert_allclose(elsewhere.table(), mine.table(), rtol=1e-4)
    np.testing.assert_allclose(elsewhere.totals, mine.totals, rtol=1e-6)


def test_arrays_come_back_when_nobody_has_the_update(corpus):
    learner, batches = Learner(topics(), Rules(alpha=0.1)), Corpus.of(corpus)
    batch = next(batches.batches(20, np.random.default_rng(0)))
    held = []
    for _ in range(3):
        held.append(learner.learn(batch, rate=0.5, of=100))
        learner.let_go(held[-1])
    bases = [id(update.statistics.base) for update in held]
    assert len(set(bases)) == 3
    del held[1]
    fourth = learner.learn(batch, rate=0.5, of=100)
    learner.let_go(fourth)
    fifth = learner.learn(batch, rate=0.5, of=100)
    assert id(fourth.statistics.base) not in bases
    assert id(fifth.statistics.base) == bases[1]
