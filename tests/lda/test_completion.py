import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import lda_oracles as oracles

from flockstep.lda.core.topics import Topics
from flockstep.lda.evaluate.completion import Completion


def dense(corpus, words):
    out = np.zeros((len(corpus), words))
    for d in range(len(corpus)):
        here = slice(corpus.starts[d], corpus.starts[d + 1])
        out[d, corpus.words[here]] = corpus.counts[here]
    return out


@pytest.mark.parametrize("documents", [1, 2, 50])
def test_the_perplexity_of_the_other_half(corpus, documents):
    held = corpus[:documents]
    completion = Completion(held, alpha=0.2, seed=4)
    seen, hidden = dense(completion._seen, 50), dense(completion._hidden, 50)
    np.testing.assert_array_equal(seen + hidden, held.toarray())
    beta = np.random.default_rng(0).dirichlet(np.full(50, 0.5), 6)
    expected = oracles.complete(beta, seen, hidden, 0.2, 400)
    assert completion.of_components(3 * beta) == pytest.approx(expected, rel=1e-3)


def test_topics_in_training_score_like_their_table(corpus):
    topics = Topics.noisy(50, 6, prior=0.1, objective="map", rng=np.random.default_rng(0))
    completion = Completion(corpus)
    assert completion.of_topics(topics) == pytest.approx(completion.of_components(topics.table().T), rel=1e-5)


def test_a_model_that_knows_the_words_is_better_than_one_that_does_not(corpus):
    completion = Completion(corpus)
    known = completion.of_components(np.asarray(corpus.sum(0))[None] + 0.1)
    assert completion.of_components(np.ones((1, 50))) == pytest.approx(50, rel=1e-3)
    assert known < 50


def test_weights_that_are_no_counts_stay_whole(corpus):
    completion = Completion(corpus * 0.37)
    seen, hidden = dense(completion._seen, 50), dense(completion._hidden, 50)
    assert not ((seen > 0) & (hidden > 0)).any()
    np.testing.assert_allclose(seen + hidden, corpus.toarray() * 0.37, rtol=1e-6)


def test_the_split_is_that_of_the_seed(corpus):
    beta = np.random.default_rng(0).dirichlet(np.full(50, 0.5), 6)
    one, same, other = (Completion(corpus, seed=seed).of_components(beta) for seed in (1, 1, 2))
    assert one == same != other


def test_bad_input(corpus):
    with pytest.raises(ValueError, match="must have words to foresee"):
        Completion(corpus * 0)
    with pytest.raises(ValueError, match=r"components must have 50 columns, one per word, got shape \(2, 49\)"):
        Completion(corpus).of_components(np.ones((2, 49)))
