"""Documents of few words are drawn: as often as they should be, the same for one seed, and better topics come of it."""

import gzip
import itertools

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import scipy.sparse as sp
from sklearn.feature_extraction.text import CountVectorizer

from flockstep.lda import LDA
from flockstep.lda.core.draws import draw
from flockstep.lda.core.learner import Learner, Rules
from flockstep.lda.core.priors import MixturePrior
from flockstep.lda.core.topics import Topics
from flockstep.lda.data.corpora import Corpus
from flockstep.lda.evaluate.completion import Completion
from flockstep.workloads.datasets import data_folder

ALPHA = np.array([0.5, 0.2, 1.5], np.float32)
BLOCK = np.array([[0.5, 0.2, 0.1], [0.1, 0.7, 0.1], [0.3, 0.05, 0.6]], np.float32)
FACTOR = np.array([1.0, 0.5, 2.0], np.float32)


def posterior(words):
    """Over all ways to give these words topics: the share of each topic in each word, and each topic's mean count."""
    beta = BLOCK * FACTOR
    about, counts, total = np.zeros((len(words), 3)), np.zeros(3), 0.0
    for ways in itertools.product(range(3), repeat=len(words)):
        n, weight = ALPHA.astype(float).copy(), 1.0
        for word, k in zip(words, ways, strict=True):
            weight *= n[k] * beta[word, k]
            n[k] += 1
        total += weight
        counts += weight * (n - ALPHA)
        for place, k in enumerate(ways):
            about[place, k] += weight
    return about / total, counts / total


@pytest.mark.parametrize(("rows", "said"), [([0], [1]), ([0, 1], [1, 1]), ([2, 0], [2, 1])])
@pytest.mark.slow
def test_they_are_drawn_as_often_as_their_posterior_says(rows, said):
    words = np.repeat(rows, said)
    about, counts = posterior(words)
    drawn, statistics = np.zeros(3), np.zeros((3, 3), np.float32)
    mine, many = np.empty(3, np.float32), 40_000
    for seed in range(many):
        draw(BLOCK, np.array(rows), np.array(said, np.float32), FACTOR, ALPHA, np.uint64(seed), mine, statistics)
        assert mine.sum() == pytest.approx(ALPHA.sum() + len(words), rel=1e-5)
        drawn += mine - ALPHA
    np.testing.assert_allclose(drawn / many, counts, atol=0.03)
    expected = np.zeros((3, 3))
    np.add.at(expected, words, about)
    # Statistics lack the factor that all documents share.
    np.testing.assert_allclose(statistics * BLOCK / many, expected, atol=0.03)


def learned(counts, objective="cvb0", seed=3, of=1000):
    corpus = Corpus.of(sp.csr_array(np.asarray(counts, np.float32)))
    (batch,) = corpus.batches(len(corpus), np.random.default_rng(seed))
    rows = np.random.default_rng(0).gamma(1.0, 1.0, (np.shape(counts)[1], 3)).astype(np.float32)
    topics = Topics(rows, prior=0.1, objective=objective)
    prior = MixturePrior(ALPHA, learned=False)
    learner = Learner(topics, Rules(alpha=ALPHA), prior)
    update = learner.learn(batch, rate=0.5, of=of)
    return update, learner._gamma[: len(corpus)] - ALPHA


FEW = np.tile([[1, 0, 2, 0], [0, 1, 1, 1], [0, 0, 0, 0]], (5, 1))


@pytest.mark.parametrize(("counts", "short"), [(FEW, True), (FEW * 10, False), (FEW * 0.5, False)])
def test_few_whole_words_are_drawn_and_others_averaged(counts, short):
    update, gamma = learned(counts)
    assert np.allclose(gamma, np.round(gamma), atol=1e-5) == short
    # Either way every word is somewhere.
    assert update.statistics.sum() == pytest.approx(0.5 * counts.sum() * 1000 / len(counts), rel=1e-3)
    np.testing.assert_allclose(gamma.sum(), counts.sum(), rtol=1e-3)


@pytest.mark.parametrize(("of", "often"), [(29, False), (30, True)])
def test_words_that_are_met_too_rarely_are_averaged(of, often):
    """Two words a document on average, four in all: fifteen times each in thirty documents."""
    _, gamma = learned(FEW, of=of)
    assert np.allclose(gamma, np.round(gamma), atol=1e-5) == often


@pytest.mark.parametrize("objective", ["vb", "map"])
def test_other_objectives_average(objective):
    _, gamma = learned(FEW, objective)
    assert not np.allclose(gamma, np.round(gamma), atol=1e-3)


def test_one_seed_is_one_draw_and_another_another():
    (one, _), (same, _), (other, _) = learned(FEW, seed=3), learned(FEW, seed=3), learned(FEW, seed=4)
    np.testing.assert_array_equal(one.statistics, same.statistics)
    assert not np.array_equal(one.totals, other.totals)


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.thorough
def test_of_sentences_of_three_words_better_topics_are_drawn(monkeypatch, seed):
    try:
        packed = (data_folder("tatoeba-deu-eng") / "deu-eng.tsv.gz").read_bytes()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    said = sorted({line.split("\t")[0] for line in gzip.decompress(packed).decode("utf8").split("\n") if line})
    counter = CountVectorizer(stop_words="english", min_df=20, token_pattern=r"[a-z]{2,}")
    counts = sp.csr_array(counter.fit_transform(said).astype(np.float32))
    counts = counts[np.random.default_rng(0).permutation(np.flatnonzero(counts.sum(1) > 1))[:42_000]]
    unseen, found = Completion(counts[40_000:]), []
    for drawn in (True, False):
        monkeypatch.setattr("flockstep.lda.core.learner.are_drawn", lambda length, drawn=drawn, **others: drawn)
        model = LDA(20, random_state=seed).fit(counts[:40_000])
        found.append(unseen.of_topics(model.topics_, model.doc_topic_prior_))
    assert found[0] < found[1]
