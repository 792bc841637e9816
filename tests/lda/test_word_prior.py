"""The prior of words in topics, learned: against NumPy, on topics whose prior is known, and through files and nodes."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import scipy.sparse as sp
from scipy.special import psi

from flockstep.lda import DPSVI, LDA, model_files
from flockstep.lda.core.priors import WordPrior, found
from flockstep.lda.core.topics import Topics, Update
from flockstep.lda.nodes.fit_nodes import fit_on_nodes


def fixed_point(n, eta, rounds=5):
    """Minka's, for expected counts: straight below one word."""
    words, totals = len(n), n.sum(0)
    for _ in range(rounds):
        above = np.where(n > 1, psi(n + eta) - psi(eta), n / eta).sum()
        eta *= above / (words * (psi(totals + words * eta) - psi(words * eta)).sum())
    return eta


def counted(eta, words=300, topics=6, tokens=5000, seed=0):
    """Words that topics with this prior say."""
    rng = np.random.default_rng(seed)
    return np.array([rng.multinomial(tokens, rng.dirichlet(np.full(words, eta))) for _ in range(topics)]).T


def documents(eta=0.05, words=400, topics=5, seed=0):
    rng = np.random.default_rng(seed)
    beta = rng.dirichlet(np.full(words, eta), topics)
    mixtures = rng.dirichlet(np.full(topics, 0.1), 600)
    return sp.csr_array(np.array([rng.multinomial(120, each @ beta) for each in mixtures], np.float32))


def test_it_is_the_fixed_point_of_numpy_with_decay_that_is_due():
    n = counted(0.1).astype(np.float32)
    topics = Topics(n.copy(), prior=0.3)
    none = np.empty(0, np.int32), np.empty((0, 6), np.float32)
    topics.fold(Update(log_decay=np.log(0.5), words=none[0], statistics=none[1], totals=np.zeros(6)))
    assert found(topics) == pytest.approx(fixed_point(n / 2, 0.3), rel=1e-5)
    np.testing.assert_array_equal(topics.rows, n)


@pytest.mark.parametrize("eta", [0.02, 0.1, 1.0])
def test_it_finds_what_topics_were_made_with(eta):
    topics = Topics(counted(eta, tokens=50_000).astype(np.float32), prior=1 / 6)
    for _ in range(20):
        topics.change_prior(found(topics))
    assert topics.prior == pytest.approx(eta, rel=0.15)


def test_of_many_words_some_stand_for_all():
    n = counted(0.1, words=9001, topics=2, tokens=10**6).astype(np.float32)
    assert found(Topics(n, prior=0.3)) == pytest.approx(fixed_point(n, 0.3), rel=0.1)


def test_topics_of_nothing_leave_it_alone():
    assert found(Topics(np.zeros((7, 2), np.float32), prior=0.3)) == 0.3


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_it_waits_for_topics_and_follows_every_so_many_documents(batch, monkeypatch):
    taken = []
    monkeypatch.setattr("flockstep.lda.core.priors.found", lambda topics: taken.append(prior.seen) or 0.5)
    prior = WordPrior(0.1, learned=True)
    topics = Topics(np.ones((3, 2), np.float32), prior=0.1)
    for _ in range(0, 700, batch):
        prior.take(topics, batch, every=100)
    assert [int(seen // 100) for seen in taken] == [3, 4, 5, 6, 7][: len(taken)]
    assert len(taken) >= 4
    assert topics.prior == 0.5


@pytest.mark.parametrize("method", ["online", "batch"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_estimator_learns_it(method, jobs):
    corpus = documents()
    plain = LDA(5, max_iter=1, random_state=0).fit(corpus)
    assert plain.topic_word_prior_ == pytest.approx(1 / 5)
    model = LDA(5, topic_word_prior="auto", learning_method=method, max_iter=20, n_jobs=jobs, random_state=0)
    model.fit(corpus)
    assert 0.025 < model.topic_word_prior_ < 0.1
    # What it says is what its components have.
    unseen = model.components_.min()
    assert unseen == pytest.approx(model.topic_word_prior_, rel=1e-3)
    assert model.topic_word_prior == "auto"
    # A new fit begins where the first did.
    assert LDA(5, topic_word_prior="auto", max_iter=0).fit(corpus).topic_word_prior_ == pytest.approx(1 / 5)


def test_a_fit_anew_begins_anew():
    model = LDA(5, topic_word_prior="auto", random_state=0).fit(documents())
    first = model.components_.copy()
    np.testing.assert_array_equal(model.fit(documents()).components_, first)


def test_a_saved_model_learns_on_as_it_would_have(tmp_path):
    corpus = documents()
    model = LDA(5, topic_word_prior="auto", total_samples=600, batch_size=50, random_state=0)
    model.partial_fit(corpus[:400])
    model_files.save(tmp_path, model)
    loaded = model_files.load(tmp_path)
    assert loaded.topic_word_prior_ == model.topic_word_prior_
    for each in (model, loaded):
        each.partial_fit(corpus[400:])
    assert loaded.topic_word_prior_ == model.topic_word_prior_ != pytest.approx(1 / 5, rel=0.1)
    np.testing.assert_array_equal(loaded.components_, model.components_)


def test_nodes_learn_it_too_and_the_model_has_their_mean():
    model = LDA(5, topic_word_prior="auto", max_iter=10, batch_size=50, random_state=0)
    trace = fit_on_nodes(model, documents(), nodes=2, strategy=DPSVI(), on="threads")
    assert model.topic_word_prior_ == pytest.approx(np.mean([float(x[-1]) for x in trace.models.values()]))
    assert 0.02 < model.topic_word_prior_ < 0.15
    assert model.components_.min() == pytest.approx(model.topic_word_prior_, rel=1e-2)


@pytest.mark.parametrize("bad", [0.0, -1.0, 2e6, "learned", [0.1] * 5])
def test_other_priors_are_refused(bad):
    with pytest.raises(ValueError, match="topic_word_prior"):
        LDA(5, topic_word_prior=bad).fit(documents())
