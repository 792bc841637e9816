import math

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from scipy import sparse

from flockstep.lda.evaluate import coherence


def corpus(documents=40, words=30, density=0.25, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(2.0, (documents, words)) * (rng.random((documents, words)) < density)
    return sparse.csr_array(counts)


def oracle(counts, words, measure):
    """Plain Python, pair by pair, from sets of words."""
    documents = [{int(w) for w in np.flatnonzero(row)} for row in counts.toarray()]
    total = len(documents)

    def seen(*group):
        return sum(all(word in document for word in group) for document in documents)

    means = []
    for topic in words.tolist():
        pairs = [(topic[i], topic[j]) for j in range(len(topic)) for i in range(j)]
        values = [measure(seen(a), seen(b), seen(a, b), total) for a, b in pairs]
        values = [value for value in values if value is not None]
        means.append(sum(values) / len(values) if values else math.nan)
    return means


def umass(a, b, both, total):
    return math.log((both + 1) / a) if a else None


def npmi(a, b, both, total):
    if both == 0:
        return -1.0
    if both == total:
        return 1.0
    return math.log((both / total) / (a / total * b / total)) / -math.log(both / total)


@pytest.mark.parametrize("topics", [1, 2, 7])
@pytest.mark.parametrize("count", [2, 5])
def test_both_measures_equal_plain_python(topics, count):
    counts = corpus()
    words = coherence.top_words(np.random.default_rng(1).random((topics, 30)), count)
    assert coherence.umass(counts, words) == pytest.approx(oracle(counts, words, umass), rel=1e-12)
    assert coherence.npmi(counts, words) == pytest.approx(oracle(counts, words, npmi), rel=1e-12)


def test_words_that_are_nowhere_and_words_that_are_everywhere():
    dense = np.array([[1, 2, 0, 0, 3], [1, 1, 0, 0, 0], [2, 1, 0, 0, 1]])
    counts, words = sparse.csr_array(dense), np.array([[0, 1], [2, 3], [2, 0], [0, 4]])
    assert coherence.umass(counts, words) == pytest.approx(oracle(counts, words, umass), nan_ok=True)
    assert coherence.npmi(counts, words) == pytest.approx([1.0, -1.0, -1.0, oracle(counts, words[3:], npmi)[0]])


def test_stored_zeros_are_no_words():
    counts = corpus()
    ends = counts.indptr + (np.arange(41) == 40)
    stored = sparse.csr_array((np.append(counts.data, 0), np.append(counts.indices, 0), ends), shape=counts.shape)
    assert stored.nnz == counts.nnz + 1
    words = np.arange(6).reshape(2, 3)
    assert np.array_equal(coherence.together(stored, words).counts, coherence.together(counts, words).counts)


@pytest.mark.parametrize("size", [1, 7, 40])
def test_blocks_count_as_the_whole(size):
    counts, words = corpus(), np.arange(12).reshape(3, 4)
    blocks = [counts[start : start + size] for start in range(0, 40, size)]
    seen = coherence.together(iter(blocks), words)
    assert seen.documents == 40
    assert np.array_equal(seen.counts, coherence.together(counts, words).counts)
    assert np.array_equal(coherence.npmi(seen, words), coherence.npmi(counts, words))


def test_umass_is_that_of_gensim():
    pytest.importorskip("gensim")
    from gensim.corpora import Dictionary
    from gensim.models import CoherenceModel

    counts = corpus(density=0.15)
    words = coherence.top_words(np.random.default_rng(2).random((4, 30)), 6)
    bags = [[(int(w), int(row[w])) for w in np.flatnonzero(row)] for row in counts.toarray()]
    dictionary = Dictionary.from_corpus(bags, id2word={word: f"w{word}" for word in range(30)})
    theirs = CoherenceModel(
        topics=[[f"w{word}" for word in topic] for topic in words],
        corpus=bags,
        dictionary=dictionary,
        coherence="u_mass",
    ).get_coherence_per_topic()
    ours = coherence.umass(counts, words, smoothing=1e-12 * counts.shape[0])
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_npmi_is_that_of_gensim_with_a_window_as_long_as_the_document():
    pytest.importorskip("gensim")
    from gensim.corpora import Dictionary
    from gensim.models import CoherenceModel

    # Dense enough that every pair occurs: for one that does not, gensim's epsilon gives nearly -1 and not -1.
    counts = corpus(density=0.8)
    words = coherence.top_words(np.random.default_rng(2).random((4, 30)), 6)
    texts = [[f"w{word}" for word in np.flatnonzero(row)] for row in counts.toarray()]
    theirs = CoherenceModel(
        topics=[[f"w{word}" for word in topic] for topic in words],
        texts=texts,
        dictionary=Dictionary(texts),
        coherence="c_npmi",
        window_size=100,
        processes=1,
    ).get_coherence_per_topic()
    assert coherence.npmi(counts, words) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("count", [1, 3, 20, 99])
def test_top_words_are_a_stable_sort(count):
    weights = np.random.default_rng(3).integers(0, 5, (6, 20)).astype(float)
    expected = np.argsort(-weights, axis=1, kind="stable")[:, :count]
    assert np.array_equal(coherence.top_words(weights, count), expected)


def test_mistakes():
    with pytest.raises(ValueError, match=r"top_words\.count must be at least 1, got 0"):
        coherence.top_words(np.ones((2, 3)), 0)
    with pytest.raises(ValueError, match=r"names word 30, but the corpus has 30 words"):
        coherence.together(corpus(), [[0, 30]])
    with pytest.raises(ValueError, match=r"a row per topic"):
        coherence.together(corpus(), [0, 1])
    with pytest.raises(ValueError, match="at least one document"):
        coherence.npmi(sparse.csr_array((0, 3)), [[0, 1]])
