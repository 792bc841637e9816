import csv
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation

from flockstep.lda import LDA, export

WORDS = [f"w{i}" for i in range(11)] + ['a "quoted", word']


def fitted(kind=LatentDirichletAllocation, topics=3, **more):
    counts = sparse.csr_matrix(np.random.default_rng(0).poisson(0.7, (40, len(WORDS))))
    return kind(n_components=topics, random_state=0, **more).fit(counts), counts


@pytest.mark.parametrize("topics", [1, 2, 5])
def test_gensim_gets_our_topics_our_words_and_our_priors(topics):
    pytest.importorskip("gensim")
    model, _ = fitted(topics=topics, doc_topic_prior=0.3, topic_word_prior=0.05)
    theirs = export.to_gensim(model, WORDS)
    expected = model.components_ / model.components_.sum(axis=1, keepdims=True)
    assert theirs.get_topics() == pytest.approx(expected, rel=1e-12)
    assert [theirs.id2word[i] for i in range(len(WORDS))] == WORDS
    assert theirs.alpha == pytest.approx(np.full(topics, 0.3))
    assert theirs.eta == pytest.approx(np.full(len(WORDS), 0.05))


@pytest.mark.parametrize("objective", ["vb", "map", "cvb0"])
def test_gensim_gets_the_topics_of_our_own_estimator(objective):
    pytest.importorskip("gensim")
    model, _ = fitted(LDA, objective=objective, max_iter=2, batch_size=7)
    theirs = export.to_gensim(model, WORDS)
    expected = model.components_ / model.components_.sum(axis=1, keepdims=True)
    assert theirs.get_topics() == pytest.approx(expected, rel=1e-5)
    assert theirs.alpha == pytest.approx(np.full(3, model.doc_topic_prior_))
    named = [[word for word, _ in top] for _, top in export.show_topics(model, WORDS, count=3)]
    assert named == [[WORDS[word] for word in np.argsort(-row, kind="stable")[:3]] for row in model.components_]


def test_gensim_lists_topics_as_we_do():
    pytest.importorskip("gensim")
    model, _ = fitted()
    theirs = export.to_gensim(model, WORDS).show_topics(num_topics=-1, num_words=4, formatted=False)
    ours = export.show_topics(model, WORDS, count=4)
    assert [topic for topic, _ in ours] == [topic for topic, _ in theirs]
    for (_, mine), (_, other) in zip(ours, theirs, strict=True):
        assert [word for word, _ in mine] == [word for word, _ in other]
        assert [share for _, share in mine] == pytest.approx([share for _, share in other], rel=1e-12)


def test_gensim_infers_what_scikit_learn_infers():
    pytest.importorskip("gensim")
    model, counts = fitted(max_doc_update_iter=1000, mean_change_tol=1e-9)
    theirs = export.to_gensim(model, WORDS)
    theirs.iterations, theirs.gamma_threshold = 1000, 1e-9
    bags = [[(int(w), int(row[w])) for w in np.flatnonzero(row)] for row in counts.toarray()]
    gamma, _ = theirs.inference(bags)
    assert gamma / gamma.sum(axis=1, keepdims=True) == pytest.approx(model.transform(counts), abs=1e-4)


@pytest.mark.parametrize("count", [1, 2, 5, 99])
def test_the_csv_file_holds_the_topics(tmp_path, count):
    model, _ = fitted()
    path = export.write_topics(tmp_path / "topics.csv", model, WORDS, count=count)
    with path.open(newline="", encoding="utf8") as file:
        rows = list(csv.DictReader(file))
    shown = min(count, len(WORDS))
    assert [(int(r["topic"]), int(r["rank"])) for r in rows] == [(k, i + 1) for k in range(3) for i in range(shown)]
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    for row in rows:
        assert float(row["probability"]) == pytest.approx(topics[int(row["topic"]), WORDS.index(row["word"])], rel=1e-5)
    for topic in range(3):
        shares = [float(row["probability"]) for row in rows if int(row["topic"]) == topic]
        assert shares == sorted(shares, reverse=True)


def test_words_have_names_without_a_vocabulary():
    model, _ = fitted()
    named = [word for _, top in export.show_topics(model, count=99) for word, _ in top]
    assert set(named) == {f"word {i}" for i in range(12)}


def test_mistakes(monkeypatch):
    model, _ = fitted()
    with pytest.raises(ValueError, match="the vocabulary has 2 words, but the model was fitted with 12"):
        export.show_topics(model, ["one", "two"])
    with pytest.raises(TypeError, match="must be a list of words"):
        export.show_topics(model, "twelve words")
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ModuleNotFoundError, match="pip install gensim"):
        export.to_gensim(model, WORDS)
