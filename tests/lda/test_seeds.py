"""Topics that begin with words somebody gave them, and training that goes on."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from lda_corpora import drawn

from flockstep.lda import LDA, load, save


def blocks(documents=200, topics=4, words=5, length=30, seed=0):
    """Documents about one topic each, whose words no other has; which topic each is about."""
    rng = np.random.default_rng(seed)
    about = rng.integers(topics, size=documents)
    beta = np.kron(np.eye(topics), np.full(words, 1 / words))
    return np.array([rng.multinomial(length, beta[k]) for k in about]), about


@pytest.mark.parametrize("objective", ["cvb0", "map", "vb"])
@pytest.mark.parametrize("seed", range(5))
def test_topics_are_about_their_words(objective, seed):
    """One word for each of the topics, in an order of its own: the others of that topic come along."""
    documents, about = blocks(seed=seed)
    order = np.random.default_rng(seed).permutation(4)
    model = LDA(4, objective=objective, seed_words=[[int(5 * k)] for k in order], random_state=seed)
    found = model.fit_transform(documents).argmax(1)
    assert (order[found] == about).mean() > 0.99


def test_some_topics_may_have_none():
    documents, about = blocks()
    model = LDA(4, seed_words=[[], [12]], random_state=0)
    assert (model.fit_transform(documents)[about == 2].argmax(1) == 1).mean() > 0.99


def test_by_name():
    pd = pytest.importorskip("pandas", reason="needs pip install 'flockstep[frame]'")
    documents, _ = blocks()
    frame = pd.DataFrame(documents, columns=[f"word{k}" for k in range(20)])
    named = LDA(4, seed_words=[["word3", "word4"], ["word7"]], random_state=0).fit(frame)
    counted = LDA(4, seed_words=[[3, 4], [7]], random_state=0).fit(frame)
    np.testing.assert_array_equal(named.components_, counted.components_)
    with pytest.raises(ValueError, match="seed_words has 'whale': no document has it"):
        LDA(4, seed_words=[["whale"]]).fit(frame)


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ([["whale"]], "'whale': documents came without names of words"),
        ([[20]], "column 20, but there are 20 words"),
        ([[-1]], "column -1"),
        ([[1]] * 5, "has 5 topics, but n_components is 4"),
    ],
)
def test_what_cannot_be_planted(seeds, said):
    with pytest.raises(ValueError, match=said):
        LDA(4, seed_words=seeds).fit(blocks()[0])


@pytest.mark.parametrize("objective", ["cvb0", "vb"])
@pytest.mark.parametrize("method", ["online", "batch"])
def test_training_goes_on(objective, method):
    corpus = drawn(120, 50, 5)
    how = {"objective": objective, "learning_method": method, "batch_size": 20, "random_state": 0}
    model = LDA(5, max_iter=2, **how).fit(corpus)
    first, bound = model.components_.copy(), model.bound_
    model.set_params(warm_start=True, max_iter=3).fit(corpus)
    assert (model.n_iter_, model.n_batch_iter_) == ((5, 31) if method == "online" else (5, 6))
    assert model.bound_ < bound
    assert not np.array_equal(first, model.components_)
    model.set_params(warm_start=False, max_iter=2).fit(corpus)
    np.testing.assert_array_equal(model.components_, first)


def test_from_a_file_too(tmp_path):
    corpus = drawn(120, 50, 5)
    model = LDA(5, max_iter=2, warm_start=True, random_state=0).fit(corpus)
    loaded = load(save(tmp_path, model))
    np.testing.assert_array_equal(loaded.fit(corpus).components_, model.fit(corpus).components_)
    assert loaded.n_iter_ == 4


def test_another_number_of_words_does_not_go_on():
    model = LDA(5, max_iter=1, warm_start=True).fit(drawn(120, 50, 5))
    with pytest.raises(ValueError, match="features"):
        model.fit(drawn(120, 60, 5))
