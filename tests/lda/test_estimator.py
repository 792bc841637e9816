import copy
import itertools
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import scipy.sparse as sp
from scipy.special import psi
from sklearn.base import clone
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from flockstep.lda import LDA


@pytest.fixture(scope="module")
def model(corpus):
    return LDA(5, max_iter=5, batch_size=20, random_state=0).fit(corpus)


@pytest.mark.filterwarnings("ignore:Estimator's parameters changed after set_params raised")
@pytest.mark.filterwarnings("ignore:Can't check dok sparse matrix for nan")
@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
@pytest.mark.cases(check=1, test=1)
@pytest.mark.slow
def test_scikit_learns_own_checks(objective):
    """None is expected to fail: none does for its own LDA."""
    results = check_estimator(LDA(objective=objective), on_skip=None)
    assert len(results) > 40
    # Needs an environment variable of SciPy's to be set before anything is imported.
    assert {each["check_name"] for each in results if each["status"] != "passed"} <= {"check_array_api_input"}


@pytest.mark.parametrize("matrix", [sp.csr_array, sp.csr_matrix, sp.csc_array, lambda x: x.toarray()])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float32, np.float64])
def test_any_form_of_counts_is_the_same(corpus, model, matrix, dtype):
    again = LDA(5, max_iter=5, batch_size=20, random_state=0).fit(matrix(corpus).astype(dtype))
    np.testing.assert_array_equal(again.components_, model.components_)


def test_same_seed_same_bits(corpus, model):
    again = clone(model).fit(corpus)
    np.testing.assert_array_equal(again.components_, model.components_)
    np.testing.assert_array_equal(again.transform(corpus), model.transform(corpus))
    other = LDA(5, max_iter=5, batch_size=20, random_state=1).fit(corpus)
    assert not np.array_equal(other.components_, model.components_)


@pytest.mark.parametrize("documents", [1, 2, 120])
def test_perplexity_is_scikit_learns_given_the_same_topics(corpus, documents):
    model = LDA(5, objective="vb", max_iter=5, batch_size=20, random_state=0).fit(corpus)
    theirs = LatentDirichletAllocation(5).fit(corpus[:1])
    theirs.components_ = model.components_.astype(np.float64)
    theirs.exp_dirichlet_component_ = np.exp(psi(theirs.components_) - psi(theirs.components_.sum(1))[:, None])
    X = corpus[:documents].astype(np.float64)
    assert model.perplexity(X) == pytest.approx(theirs.perplexity(X), rel=1e-4)
    assert model.score(X) == pytest.approx(theirs.score(X), rel=1e-4)
    assert model.perplexity(X, sub_sampling=True) == pytest.approx(theirs.perplexity(X, sub_sampling=True), rel=1e-4)
    np.testing.assert_allclose(model.transform(X), theirs.transform(X), atol=1e-3)


def test_bound_is_the_perplexity_of_the_training_documents(corpus, model):
    assert model.bound_ == pytest.approx(model.perplexity(corpus), rel=1e-6)


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_it_learns(corpus, objective, n_jobs):
    settings = {"n_components": 5, "batch_size": 10, "objective": objective, "n_jobs": n_jobs, "random_state": 0}
    before = LDA(max_iter=0, **settings).fit(corpus, eval_docs=corpus)
    after = LDA(max_iter=20, **settings).fit(corpus)
    assert after.perplexity(corpus) < 0.8 * before.perplexity(corpus)


def test_two_threads_infer_what_one_does(corpus, model, monkeypatch):
    monkeypatch.setattr("flockstep.lda.evaluate.measure._CHUNK", 7)
    two = copy.deepcopy(model).set_params(n_jobs=2)
    np.testing.assert_array_equal(two.transform(corpus), model.transform(corpus))


def test_partial_fit_goes_on(corpus):
    settings = {"n_components": 5, "batch_size": 10, "total_samples": 120, "random_state": 0}
    whole = LDA(**settings).partial_fit(corpus)
    parts = LDA(**settings).partial_fit(corpus[:50]).partial_fit(corpus[50:])
    np.testing.assert_array_equal(whole.components_, parts.components_)
    assert whole.n_batch_iter_ == parts.n_batch_iter_ == 13


def test_a_held_out_score_on_the_way(corpus):
    model = LDA(5, max_iter=3, batch_size=20, random_state=0).fit(corpus[:100], eval_docs=corpus[100:])
    assert [score["documents"] for score in model.eval_scores_] == [100, 200, 300]
    assert model.eval_scores_[2]["perplexity"] < model.eval_scores_[0]["perplexity"]
    plain = LDA(5, max_iter=3, batch_size=20, random_state=0).fit(corpus[:100])
    np.testing.assert_array_equal(plain.components_, model.components_)
    assert plain.eval_scores_ == []


@pytest.mark.parametrize(("every", "looks"), [(1, 5), (20, 5), (30, 3), (1000, 1)])
def test_looks_within_a_pass(corpus, every, looks):
    model = LDA(5, max_iter=1, batch_size=20).fit(corpus[:100], eval_docs=corpus[100:], eval_docs_every=every)
    assert len(model.eval_scores_) == looks
    assert model.eval_scores_[-1]["documents"] == 100


def test_it_ends_when_the_score_stands_still(corpus):
    model = LDA(5, max_iter=500, batch_size=20, patience=2, tolerance=0.01, random_state=0)
    model.fit(corpus[:100], eval_docs=corpus[100:])
    scores = [score["perplexity"] for score in model.eval_scores_]
    assert model.n_iter_ == len(scores) < 500
    gained = [1 - score / min(scores[:i]) for i, score in enumerate(scores) if i]
    idle = [gain <= 0.01 for gain in gained]
    assert idle[-2:] == [True, True]
    assert not any(one and other for one, other in itertools.pairwise(idle[:-1]))


def test_components_can_be_given(corpus, model):
    other = LDA(5, doc_topic_prior=model.doc_topic_prior_)
    other.components_ = model.components_
    np.testing.assert_allclose(other.transform(corpus), model.transform(corpus), atol=1e-4)
    with pytest.raises(ValueError, match="must be a table of positive numbers"):
        other.components_ = -model.components_


def test_behind_a_vectorizer():
    texts = ["the cat sat on the mat", "dogs and cats", "stocks fell", "the market rose as stocks rose", ""]
    pipeline = make_pipeline(CountVectorizer(), LDA(2, random_state=0))
    topics = pipeline.fit_transform(texts)
    np.testing.assert_allclose(topics.sum(1), 1, rtol=1e-6)
    assert pipeline.get_feature_names_out().tolist() == ["lda0", "lda1"]
    frame = LDA(2).set_output(transform="pandas").fit_transform(CountVectorizer().fit_transform(texts))
    assert frame.columns.tolist() == ["lda0", "lda1"]


def test_pickled_and_back(corpus, model):
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(corpus), model.transform(corpus))
    one, other = again.partial_fit(corpus), copy.deepcopy(model).partial_fit(corpus)
    np.testing.assert_array_equal(one.components_, other.components_)


def test_one_topic_and_one_document(corpus):
    model = LDA(1, random_state=0).fit(corpus[:1])
    np.testing.assert_array_equal(model.transform(corpus), np.ones((120, 1)))


def test_words_nobody_knows_and_documents_without_words(corpus):
    """As scikit-learn's: a document without words is about everything alike."""
    model = LDA(3, random_state=0, doc_topic_prior=0.3).fit(np.vstack([corpus[:, :20].toarray(), np.zeros((3, 20))]))
    np.testing.assert_allclose(model.transform(np.zeros((2, 20))), 1 / 3)
    assert np.isfinite(model.bound_)

    wide = LDA(3, random_state=0).fit(sp.hstack([corpus, sp.csr_array((120, 5))]))
    unknown = np.zeros((1, 55))
    unknown[0, 52] = 3
    assert np.isfinite(wide.transform(unknown)).all()
    assert np.isfinite(wide.perplexity(unknown))


def test_where_the_prior_is_learned_they_are_about_what_others_are():
    rng = np.random.default_rng(0)
    topic = np.kron(np.eye(2), np.ones((1, 10))) / 10
    often = rng.multinomial(30, topic[0], size=300)
    rarely = rng.multinomial(30, topic[1], size=100)
    model = LDA(2, random_state=0, batch_size=50).fit(np.vstack([often, rarely]))
    assert sorted(model.transform(np.zeros((1, 20)))[0]) == pytest.approx([0.25, 0.75], abs=0.05)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: -x,
        lambda x: np.where(x > 3, np.nan, x),
        lambda x: np.where(x > 3, np.inf, x),
        lambda x: x[:0],
        lambda x: x[:, :0],
        lambda x: x[0],
        lambda x: x.astype(str).astype(object) + "?",
        lambda x: x + 1j,
    ],
)
def test_bad_input_is_told_in_scikit_learns_words(corpus, spoil):
    bad = spoil(corpus.toarray().astype(float))
    with pytest.raises((ValueError, TypeError)) as theirs:
        LatentDirichletAllocation(3).fit(bad)
    with pytest.raises(type(theirs.value)) as ours:
        LDA(3).fit(bad)
    assert str(ours.value) == str(theirs.value).replace("LatentDirichletAllocation", "LDA")


@pytest.mark.parametrize("method", ["transform", "score", "perplexity", "partial_fit"])
def test_a_wrong_number_of_words(corpus, model, method):
    with pytest.raises(ValueError, match="X has 49 features, but LDA is expecting 50 features as input"):
        getattr(copy.deepcopy(model), method)(corpus[:, :49])


@pytest.mark.parametrize("name", ["transform", "score", "perplexity"])
def test_before_it_is_fitted(corpus, name):
    with pytest.raises(NotFittedError, match="This LDA instance is not fitted yet"):
        getattr(LDA(), name)(corpus)
    with pytest.raises(AttributeError, match="components_"):
        LDA().components_  # noqa: B018


@pytest.mark.parametrize(
    "bad",
    [
        {"n_components": 0},
        {"objective": "em"},
        {"batch_size": 0},
        {"doc_topic_prior": 0},
        {"topic_word_prior": -1.0},
        {"learning_decay": 1.5},
        {"learning_offset": 0.5},
        {"learning_delay": -1},
        {"max_iter": -1},
        {"patience": 0},
        {"evaluate_every": 1.5},
        {"learning_method": "both"},
        {"perp_tol": -1.0},
        {"n_jobs": 1.5},
    ],
)
def test_bad_settings(corpus, bad):
    (name,) = bad
    with pytest.raises(ValueError, match=f"The '{name}' parameter of LDA must be"):
        LDA(**bad).fit(corpus)


def test_what_a_person_sees(corpus, capsys):
    LDA(3, verbose=1, max_iter=2).fit(corpus[:100], eval_docs=corpus[100:])
    seen = capsys.readouterr()
    assert "held-out perplexity" in seen.err
    assert seen.out == ""
    LDA(3, max_iter=2).fit(corpus)
    assert capsys.readouterr() == ("", "")


@pytest.mark.thorough
def test_compiling_is_told_the_first_time(tmp_path):
    script = "import numpy as np; from flockstep.lda import LDA; LDA(2, max_iter=1, verbose=1).fit(np.eye(8))"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for first in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert ("compiled the inner loops in" in done.stderr) == first
        assert ("cached from now on" in done.stderr) == first
