import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from scipy import sparse

from flockstep.lda.data.holdout import split
from flockstep.lda.data.streams import Blocks

# Every document is told by its only entry.
COUNTS = sparse.csr_matrix(np.diag(np.arange(1.0, 41)))


def numbers(matrix):
    return np.asarray(matrix.sum(axis=1)).ravel().astype(int).tolist()


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.1, 4), (0.33, 13)])
def test_every_document_is_on_one_side(share, count):
    rest, apart = split(COUNTS, share, seed=1)
    assert apart.shape[0] == count
    assert sorted(numbers(rest) + numbers(apart)) == list(range(1, 41))
    again, _ = split(COUNTS, share, seed=1)
    assert numbers(again) == numbers(rest)
    assert numbers(split(COUNTS, share, seed=2)[1]) != numbers(apart)


@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_stream_leaves_the_same_documents_out_on_every_pass(size):
    stream = Blocks(lambda: (COUNTS[start : start + size] for start in range(0, 40, size)))
    rest, apart = split(stream, 0.25, seed=3)
    first, second = ([number for block in rest for number in numbers(block)] for _ in range(2))
    assert first == second
    assert sorted(first + numbers(apart)) == list(range(1, 41))
    assert 0 < apart.shape[0] < 20
    assert rest.n_documents == len(first)
    assert rest.n_features == 40


def test_no_share_is_no_split():
    assert split(COUNTS, 0) == (COUNTS, None)


def test_mistakes():
    with pytest.raises(ValueError, match=r"split\.share must leave documents to learn from, got 1"):
        split(COUNTS, 1.0)
    with pytest.raises(ValueError, match=r"split\.share must leave documents to learn from, got 0\.9 of 1"):
        split(COUNTS[:1], 0.9)
    with pytest.raises(ValueError, match="a stream that can be read again"):
        split(Blocks(iter([COUNTS])), 0.5)
