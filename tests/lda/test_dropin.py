"""In scikit-learn's place: its own tests on our class, and what its users expect besides."""

import importlib
import itertools
import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import joblib
import lda_oracles
import sklearn.decomposition

from flockstep.lda import LDA, load, save
from flockstep.lda.core.learner import Rules, first_gamma
from flockstep.lda.core.topics import Topics
from flockstep.lda.core.training import Schedule, WholeTrainer
from flockstep.lda.data.corpora import Corpus

SUITE = importlib.import_module("sklearn.decomposition.tests.test_online_lda")

NOT_OURS = {
    "test_verbosity": "progress is a bar on stderr, not lines on stdout",
    "test_lda_preplexity_mismatch": "tries a private method of theirs",
    "test_lda_partial_fit": "has one seed; see below",
    "test_lda_partial_fit_multi_jobs": "has one seed, with which it is chance who of two threads is first",
    "test_dirichlet_expectation": "tries a compiled function of theirs, not the class",
}
"""Said in docs/lda.md."""


class LatentDirichletAllocation(LDA):
    """Ours under their name, which is in messages and in names of columns, with their objective."""

    def __init__(self, n_components=10, *, objective="vb", **others):
        super().__init__(n_components, objective=objective, **others)

    @classmethod
    def _get_param_names(cls):
        return LDA._get_param_names()


SUITE.LatentDirichletAllocation = LatentDirichletAllocation  # type: ignore[attr-defined]
globals().update(
    {name: test for name, test in vars(SUITE).items() if name.startswith("test_") and name not in NOT_OURS}
)


@pytest.fixture(params=[np.float32, np.float64])
def global_dtype(request):
    return request.param


@pytest.fixture(params=[0, 42])
def global_random_seed(request):
    return request.param


def test_what_is_left_out_is_there_to_be_left_out():
    assert set(NOT_OURS) <= set(vars(SUITE))


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
def test_batch_is_batch_variational_bayes(corpus, objective, jobs):
    """Against plain NumPy, whatever the number of threads."""
    whole = Corpus.of(corpus)
    topics = Topics.noisy(50, 4, prior=0.2, objective=objective, rng=np.random.default_rng(3))
    first = topics.table().astype(float)
    rules = Rules(alpha=0.3, full_rounds=12, rounds=12, tolerance=0.0, negligible=-1.0)
    rng = np.random.default_rng(1)
    batches = [batch for _ in range(3) for batch in whole.batches(len(whole), rng)]
    WholeTrainer(topics, rules, Schedule(decay=0.7, offset=2.0), threads=jobs).run(batches, of=len(whole))
    given = []
    for batch in batches:
        gamma = np.empty((len(whole), 4), np.float32)
        first_gamma(gamma, batch.seed)
        given.append((corpus.toarray()[batch.chosen].astype(float), gamma.astype(float)))
    expected = lda_oracles.learn(
        given,
        first,
        prior=0.2,
        alpha=0.3,
        of=len(whole),
        decay=0.0,
        offset=1.0,
        rounds=12,
        objective=objective,
        full=12,
    )
    np.testing.assert_allclose(topics.table(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("jobs", [2, 3, 200])
def test_batch_is_the_same_on_any_number_of_threads(corpus, jobs):
    one, several = (LDA(4, learning_method="batch", random_state=0, n_jobs=n).fit(corpus) for n in (1, jobs))
    np.testing.assert_allclose(several.components_, one.components_, rtol=1e-3, atol=1e-3)
    assert (several.n_iter_, several.n_batch_iter_, several.batch_size_) == (10, 11, corpus.shape[0])


@pytest.mark.slow
def test_few_documents_a_few_times_tell_topics_apart_as_often_as_there():
    """Their test of partial_fit has one seed, with which theirs does; of these twenty neither always does."""
    truth = {(0, 1, 2), (3, 4, 5), (6, 7, 8)}
    documents = np.kron(np.eye(3, dtype=int), np.full((3, 3), 3))

    def found(kind, seed, **how):
        model = kind(n_components=3, learning_offset=10.0, total_samples=100, random_state=seed, **how)
        for _ in range(3):
            model.partial_fit(documents)
        return {tuple(sorted(row.argsort()[-3:].tolist())) for row in model.components_} == truth

    theirs = sum(found(sklearn.decomposition.LatentDirichletAllocation, seed) for seed in range(20))
    assert sum(found(LDA, seed, objective="vb") for seed in range(20)) >= theirs


def test_a_stream_is_not_learned_in_one_batch(corpus):
    with pytest.raises(ValueError, match="needs all documents in memory"):
        LDA(4, learning_method="batch").fit(iter([corpus[:50], corpus[50:]]))


def test_it_ends_when_looks_no_longer_differ(corpus):
    model = LDA(4, learning_method="batch", max_iter=500, evaluate_every=2, perp_tol=0.5, random_state=0).fit(corpus)
    found = [score["perplexity"] for score in model.eval_scores_]
    assert model.n_iter_ == 2 * len(found) < 500
    assert abs(found[-1] - found[-2]) < 0.5
    assert all(abs(a - b) >= 0.5 for a, b in itertools.pairwise(found[:-1]))
    assert found[-1] == pytest.approx(model.bound_, rel=1e-6)


@pytest.mark.parametrize("never", [0, -1])
def test_no_looks_when_asked_for_none(corpus, never):
    assert LDA(4, max_iter=2, evaluate_every=never).fit(corpus[:100], eval_docs=corpus[100:]).eval_scores_ == []


def test_looks_while_transforming(corpus):
    model = LDA(4, max_iter=2, random_state=0)
    mixtures = model.fit_transform(corpus[:100], eval_docs=corpus[100:])
    assert len(model.eval_scores_) == 2
    np.testing.assert_allclose(mixtures, model.transform(corpus[:100]))


@pytest.mark.parametrize(("name", "value"), [("n_components", 7), ("objective", "map")])
def test_a_model_that_became_another_does_not_learn_on(corpus, name, value):
    model = LDA(4).partial_fit(corpus).set_params(**{name: value})
    with pytest.raises(ValueError, match=rf"LDA\.{name} was .* when learning began, and is {value!r} now"):
        model.partial_fit(corpus)
    model.fit(corpus)


@pytest.mark.thorough
def test_a_model_in_mapped_memory_goes_on_learning(corpus, tmp_path):
    model = LDA(4, max_iter=2, random_state=0).fit(corpus)
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    np.testing.assert_array_equal(mapped.transform(corpus), model.transform(corpus))
    np.testing.assert_array_equal(mapped.components_, model.components_)
    again = pickle.loads(pickle.dumps(model))
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    np.testing.assert_array_equal(mapped.partial_fit(corpus).components_, again.partial_fit(corpus).components_)
    fresh = joblib.load(tmp_path / "model", mmap_mode="r")
    np.testing.assert_array_equal(fresh.components_, model.components_)


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_numbers_come_back_as_they_were_asked_for(corpus, kind, tmp_path):
    model = LDA(4, max_iter=1).fit(corpus.astype(kind))
    asked = "float64" if kind == "float64" else "float32"
    assert model.components_.dtype == model.exp_dirichlet_component_.dtype == asked
    assert load(save(tmp_path, model)).components_.dtype == asked
    assert isinstance(model.random_state_, np.random.RandomState)


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e3, 1e7])
def test_counts_of_any_size_are_counted(corpus, objective, factor):
    """Topics of the same documents, each many times over: what is learned is finite, and foresees at least as well."""
    counts = corpus.astype(float) * factor
    model = LDA(5, objective=objective, random_state=0).fit(counts)
    assert np.isfinite(model.components_).all()
    np.testing.assert_allclose(model.transform(counts).sum(1), 1, rtol=1e-6)
    if factor >= 1:
        once = LDA(5, objective=objective, random_state=0).fit(corpus)
        assert model.bound_ < 1.05 * once.bound_


@pytest.mark.parametrize("kind", [np.asarray, lambda X: X], ids=["dense", "sparse"])
@pytest.mark.parametrize("verb", ["fit", "partial_fit", "transform", "perplexity"])
def test_counts_beyond_counting_are_refused(corpus, verb, kind):
    counts = (corpus * 1e15).toarray() if kind is np.asarray else corpus * 1e15
    model = LDA(5, max_iter=1).fit(corpus) if verb in ("transform", "perplexity") else LDA(5)
    with pytest.raises(ValueError, match=rf"LDA\.{verb}: document \d+ has .* words, and more than 1e\+09"):
        getattr(model, verb)(counts)


@pytest.mark.parametrize("name", ["doc_topic_prior", "topic_word_prior"])
def test_priors_beyond_all_words_are_refused(corpus, name):
    with pytest.raises(ValueError, match=f"The '{name}' parameter of LDA must be"):
        LDA(5, **{name: 1e30}).fit(corpus)


def test_an_array_of_priors_too(corpus):
    with pytest.raises(ValueError, match=r"LDA\.doc_topic_prior must be positive, and at most 1e\+06"):
        LDA(2, doc_topic_prior=[1.0, 1e30]).fit(corpus)


def test_documents_without_words_are_said(corpus, caplog):
    model = LDA(5, max_iter=2).fit(corpus * 0)
    assert "the documents have no words at all" in caplog.text
    assert np.isnan(model.bound_)
    assert np.isfinite(model.components_).all()
    np.testing.assert_allclose(model.transform(corpus[:3] * 0), 0.2)


def test_more_topics_than_documents_are_said(corpus, caplog):
    model = LDA(50, max_iter=2).fit(corpus[:7])
    assert "50 topics from 7 documents" in caplog.text
    assert np.isfinite(model.components_).all()


def test_topics_that_tell_nothing_are_said(caplog):
    """Words drawn from one distribution, two a document: there is nothing to learn."""
    rng = np.random.default_rng(0)
    noise = rng.multinomial(2, rng.dirichlet(np.full(200, 0.5)), 300)
    LDA(20, objective="vb", random_state=0).fit(noise[:200], eval_docs=noise[200:])
    assert "foresee words no better than word frequencies do" in caplog.text


def test_and_not_where_they_tell_something(corpus, caplog):
    LDA(5, random_state=0).fit(corpus)
    LDA(5, random_state=0).fit(corpus[:100], eval_docs=corpus[100:])
    assert not caplog.text
