import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from scipy import sparse

from flockstep.lda.evaluate.survey import survey


class Known:
    """A model that knows the topics of every document: those its first words count."""

    n_components, n_features_in_ = 3, 5

    def transform(self, counts):
        rows = np.asarray(counts.todense(), dtype=float)[:, :3] + 1e-3
        return rows / rows.sum(axis=1, keepdims=True)


COUNTS = sparse.csr_matrix([[4, 0, 0, 0, 0], [0, 3, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 0, 6, 0], [0, 0, 2, 0, 0]])


def test_sizes_and_frequencies_are_shares_of_all_tokens():
    seen = survey(Known(), COUNTS)
    mixtures, lengths = Known().transform(COUNTS), np.array([4, 4, 0, 8, 2])
    assert seen.sizes == pytest.approx((mixtures * lengths[:, None]).sum(axis=0) / 18)
    assert seen.frequencies == pytest.approx(np.array([5, 4, 3, 6, 0]) / 18)
    assert (seen.documents, seen.tokens) == (5, 18)


def test_typical_documents_are_the_purest_and_never_empty_ones():
    seen = survey(Known(), COUNTS, typical=2)
    assert seen.typical.tolist() == [[0, 3], [1, 3], [4, 1]]
    mixtures = Known().transform(COUNTS)
    for topic in range(3):
        assert seen.shares[topic] == pytest.approx(mixtures[seen.typical[topic], topic])


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("typical", [1, 3, 9])
def test_blocks_are_surveyed_as_the_whole(size, typical):
    whole = survey(Known(), COUNTS, typical=typical)
    blocks = survey(Known(), (COUNTS[start : start + size] for start in range(0, 5, size)), typical=typical)
    assert np.array_equal(whole.typical, blocks.typical)
    assert whole.sizes == pytest.approx(blocks.sizes)
    assert np.array_equal(whole.frequencies, blocks.frequencies)


def test_a_corpus_without_words():
    with pytest.raises(ValueError, match="at least one word of the vocabulary"):
        survey(Known(), COUNTS[2:3])
