"""The prior of documents' topics, learned: against NumPy, on data whose prior is known, where it must not run away."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import scipy.sparse as sp
from scipy.special import psi

from flockstep.lda import LDA
from flockstep.lda.core.learner import Batch, Learner, Rules
from flockstep.lda.core.priors import MixturePrior
from flockstep.lda.core.topics import Topics
from flockstep.lda.data.corpora import Corpus

ALPHA = np.array([0.3, 0.05, 0.8, 0.1], np.float32)


def made(documents=200, words=40, alpha=ALPHA, length=60, seed=0):
    """Documents of topics that share no word, so that it is known what each word is about."""
    rng = np.random.default_rng(seed)
    beta = np.kron(np.eye(len(alpha)), np.ones((1, words // len(alpha)))) / (words // len(alpha))
    theta = rng.dirichlet(alpha, documents)
    lengths = np.full(documents, length) if np.isscalar(length) else length
    return sp.csr_array(np.array([rng.multinomial(n, t @ beta) for n, t in zip(lengths, theta, strict=True)])), beta


def fixed_point(counts, alpha, rounds=1):
    """Minka's, for counts that are known."""
    for _ in range(rounds):
        above = (psi(counts + alpha) - psi(alpha)).sum(0)
        alpha = alpha * above / (psi(counts.sum(1) + alpha.sum()) - psi(alpha.sum())).sum()
    return alpha


def expected(n, alpha):
    """psi(N + alpha) - psi(alpha) for an expected count n: straight below 1."""
    return np.where(n > 1, psi(n + alpha) - psi(alpha), n / alpha)


def batch_of(corpus):
    rows = Corpus.of(corpus)
    return Batch(starts=rows.starts, words=rows.words, counts=rows.counts, chosen=np.arange(len(rows)), seed=1)


def batch_rounds(counts, alpha, rounds=5):
    """As many rounds as a batch is good for, with expected counts."""
    for _ in range(rounds):
        above = expected(counts, alpha).sum(0)
        alpha = alpha * above / (psi(counts.sum(1) + alpha.sum()) - psi(alpha.sum())).sum()
    return within(alpha, counts.sum(1).mean())


def within(alpha, words):
    """No topic far below the mean where there are few words; a sum that is neither next to nothing nor all there is."""
    alpha = np.maximum(alpha, min(0.5, 3 / words) * alpha.mean())
    return alpha * min(max(alpha.sum(), min(1, 3 / words)), max(5, words / 2)) / alpha.sum()


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
def test_a_batch_is_taken_in_as_in_numpy(objective):
    corpus, beta = made()
    rows = np.ascontiguousarray((beta.T * 1000).astype(np.float32))
    prior = MixturePrior(np.full(4, 0.2), learned=True)
    learner = Learner(Topics(rows, prior=0.01, objective=objective), Rules(alpha=0.2), prior)
    learner.learn(batch_of(corpus), rate=0.5, of=200)
    counts = learner._gamma[:200].astype(float) - np.float32(0.2)
    np.testing.assert_allclose(counts.sum(1), corpus.sum(1), rtol=1e-3)
    counts[counts <= 1e-3] = 0
    np.testing.assert_allclose(prior.alpha, batch_rounds(counts, np.full(4, 0.2)), rtol=1e-3)


def test_it_looks_at_the_latest_documents_and_at_none_before_it_is_time():
    rng = np.random.default_rng(0)
    batches = [rng.gamma(0.3, 10, (900, 3)).astype(np.float32) for _ in range(5)]
    prior, alpha = MixturePrior(np.full(3, 0.5), learned=True), np.full(3, 0.5)
    for number, counts in enumerate(batches):
        under = prior.alpha
        prior.take(counts + under, under, after=900)
        if number > 0:
            alpha = batch_rounds(np.concatenate(batches[max(1, number - 2) : number + 1]), alpha)
        np.testing.assert_allclose(prior.alpha, alpha, rtol=1e-3)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.slow
def test_it_comes_to_that_of_the_documents(n_jobs):
    corpus, beta = made(documents=2000)
    model = LDA(4, random_state=0, batch_size=100, max_iter=20, n_jobs=n_jobs).fit(corpus)
    # Which of ours is which of theirs.
    order = (model.components_ @ beta.T).argmax(0)
    assert sorted(order) == [0, 1, 2, 3]
    known = fixed_point(corpus @ (beta.T > 0), np.full(4, 0.2), rounds=500)
    np.testing.assert_allclose(model.doc_topic_prior_[order], known, rtol=0.15)


def test_one_for_each_topic_may_be_given_and_stays():
    corpus, _ = made()
    model = LDA(4, doc_topic_prior=ALPHA, random_state=0, batch_size=50).fit(corpus)
    np.testing.assert_array_equal(model.doc_topic_prior_, ALPHA)


@pytest.mark.parametrize(("share", "length"), [(0.02, 3), (0.02, 40), (3.0, 4), (3.0, 40)])
@pytest.mark.slow
def test_it_stays_within_what_documents_can_stand_up_to(share, length):
    """Of documents that are about one topic, or about everything, or that rough topics make look so."""
    rng = np.random.default_rng(0)
    prior = MixturePrior(np.full(5, 0.2), learned=True)
    for _ in range(40):
        counts = np.array([rng.multinomial(length, rng.dirichlet(np.full(5, share))) for _ in range(500)], np.float32)
        prior.take(counts + prior.alpha, prior.alpha, after=0)
    total = prior.alpha.sum()
    assert min(1.0, 3 / length) * 0.999 <= total <= max(5.0, length / 2) * 1.001
    assert prior.alpha.min() >= 0.99 * min(0.5, 3 / length) * prior.alpha.mean()
    assert total < 1.001 if share < 1 else total > 4


def test_short_texts_do_not_become_one_topic():
    """Three words each: rough topics leave such a text undecided, and a prior that follows at once made all alike."""
    alpha = np.full(20, 0.05)
    corpus, _ = made(documents=3000, words=400, alpha=alpha, length=3)
    model = LDA(20, random_state=0, batch_size=100).fit(corpus)
    assert model.doc_topic_prior_.sum() < 5
    tops = model.components_.argsort(1)[:, -10:]
    assert len(np.unique(tops)) > 100


@pytest.mark.parametrize(
    ("prior", "told"),
    [
        (np.ones(3), r"LDA.doc_topic_prior must be one number or 4, one for each topic, got \(3,\)"),
        (np.array([1.0, 1.0, 0.0, 1.0]), "LDA.doc_topic_prior must be positive"),
        (np.array([1.0, 1.0, np.inf, 1.0]), "LDA.doc_topic_prior must be positive"),
        ("even", "doc_topic_prior"),
    ],
)
def test_what_is_no_prior_is_refused(prior, told):
    with pytest.raises(ValueError, match=told):
        LDA(4, doc_topic_prior=prior).fit(made()[0])
