import gzip

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

import scipy.sparse as sp

from flockstep.lda import LDA
from flockstep.lda.data.streams import ArrayFile, BagOfWords, Blocks, mapped


@pytest.fixture
def holey(corpus):
    """Empty documents at the beginning, in the middle and at the end."""
    empty = sp.csr_array((2, 50), dtype=corpus.dtype)
    return sp.csr_array(sp.vstack([empty, corpus[:30], empty, corpus[30:60], empty]))


def write(matrix, path):
    rows = [f"{d + 1} {w + 1} {n}\n" for d, w, n in zip(*sp.find(matrix.T)[1::-1], sp.find(matrix.T)[2], strict=True)]
    rows.sort(key=lambda row: int(row.split()[0]))
    text = f"{matrix.shape[0]}\n{matrix.shape[1]}\n{matrix.nnz}\n{''.join(rows)}".encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("block", [1, 2, 7, 66, 1000])
@pytest.mark.parametrize("name", ["docword.txt", "docword.txt.gz"])
def test_a_bag_of_words_file(holey, tmp_path, monkeypatch, name, block):
    monkeypatch.setattr("flockstep.lda.data.streams._READ", 64)
    stream = BagOfWords(write(holey, tmp_path / name), block=block)
    assert (stream.n_documents, stream.n_features, stream.again) == (66, 50, True)
    for _ in range(2):
        blocks = list(stream)
        assert all(part.shape[0] == block for part in blocks[:-1])
        np.testing.assert_array_equal(sp.vstack(blocks).toarray(), holey.toarray())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("2\n3\n", "expected three lines with one number each"),
        ("2\n3\nfour\n1 1 1\n", "expected three lines with one number each"),
        ("2\n3\n1\n1 1 x\n", "expected lines 'document word count'"),
        ("2\n3\n1\n1 1\n", "expected lines 'document word count'"),
        ("2\n3\n1\n1 1 -2\n", "expected lines 'document word count'"),
        ("2\n3\n2\n2 1 1\n1 1 1\n", "documents must be in order"),
        ("2\n3\n1\n3 1 1\n", "beyond what its header says"),
        ("2\n3\n1\n1 4 1\n", "beyond what its header says"),
        ("2\n3\n1\n1 0 1\n", "beyond what its header says"),
        ("2\n3\n2\n1 1 1\n", "has 1 entries, but its header says 2"),
    ],
)
def test_a_bad_bag_of_words_file(tmp_path, text, error):
    path = tmp_path / "docword.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=error):
        list(BagOfWords(path))


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz(holey, tmp_path, save, block):
    path = tmp_path / "corpus.npz"
    save(path, indptr=holey.indptr, indices=holey.indices.astype(np.uint16), counts=holey.data.astype(np.uint16))
    stream = ArrayFile(path, n_features=50, block=block)
    assert isinstance(mapped(path, "indices"), np.memmap) == (save is np.savez)
    for _ in range(2):
        np.testing.assert_array_equal(sp.vstack(list(stream)).toarray(), holey.toarray())


def test_an_npz_of_scipy(holey, tmp_path):
    sp.save_npz(tmp_path / "a.npz", holey, compressed=False)
    stream = ArrayFile(tmp_path / "a.npz")
    assert (stream.n_documents, stream.n_features) == (66, 50)
    np.testing.assert_array_equal(sp.vstack(list(stream)).toarray(), holey.toarray())


def test_an_npz_of_something_else(tmp_path):
    np.savez(tmp_path / "a.npz", weights=np.ones(3))
    with pytest.raises(ValueError, match="expected arrays indptr, indices and counts, got weights"):
        ArrayFile(tmp_path / "a.npz")


def test_blocks_from_an_iterator_are_read_once(corpus):
    blocks = Blocks(corpus[i : i + 50] for i in range(0, 120, 50))
    assert (blocks.n_features, blocks.again) == (50, False)
    np.testing.assert_array_equal(sp.vstack(list(blocks)).toarray(), corpus.toarray())
    with pytest.raises(ValueError, match="were read already"):
        iter(blocks)


@pytest.mark.parametrize("make", [lambda parts: parts, lambda parts: lambda: iter(parts)])
def test_blocks_from_a_list_or_a_function_are_read_again(corpus, make):
    blocks = Blocks(make([corpus[:50], corpus[50:]]))
    assert blocks.again
    for _ in range(2):
        np.testing.assert_array_equal(sp.vstack(list(blocks)).toarray(), corpus.toarray())


def test_no_blocks():
    with pytest.raises(ValueError, match="at least one block, got none"):
        Blocks([])


def test_one_block_is_the_corpus_itself(corpus):
    """The same documents in the same order give the same topics, wherever they come from."""
    settings = {"n_components": 4, "max_iter": 3, "batch_size": 10, "random_state": 0}
    whole = LDA(**settings).fit(corpus.astype(np.float32))
    streamed = LDA(**settings).fit(Blocks([corpus.astype(np.float32)], n_documents=120))
    np.testing.assert_array_equal(whole.components_, streamed.components_)
    assert streamed.n_iter_ == 3
    assert streamed.bound_ == pytest.approx(whole.bound_)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_fit_reads_a_file_block_by_block(holey, tmp_path, n_jobs):
    stream = BagOfWords(write(holey, tmp_path / "docword.txt"), block=20)
    model = LDA(4, max_iter=5, batch_size=10, random_state=0, n_jobs=n_jobs).fit(stream)
    assert (model.n_iter_, model.n_features_in_, model.batch_size_) == (5, 50, 10 if n_jobs == 1 else 8)
    assert model.perplexity(holey) < LDA(4, max_iter=0, random_state=0).fit(holey).perplexity(holey)


def test_a_generator_gets_one_pass(corpus):
    model = LDA(4, max_iter=5, total_samples=120, random_state=0).fit(corpus[i : i + 50] for i in (0, 50))
    assert model.n_iter_ == 1
    assert model.transform(corpus).shape == (120, 4)


def test_partial_fit_takes_streams(corpus):
    settings = {"n_components": 4, "batch_size": 10, "total_samples": 120, "random_state": 0}
    parts = [corpus[:50], corpus[50:100]]
    whole = LDA(**settings).partial_fit(corpus[:100])
    streamed = LDA(**settings).partial_fit(Blocks(parts))
    np.testing.assert_array_equal(whole.components_, streamed.components_)


def test_a_bad_block_is_told_in_scikit_learns_words(corpus):
    with pytest.raises(ValueError, match=r"Negative values in data passed to LDA\.fit"):
        LDA(4).fit(Blocks([corpus, -corpus]))
    with pytest.raises(ValueError, match="X has 49 features, but LDA is expecting 50 features as input"):
        LDA(4).fit(Blocks([corpus, corpus[:, :49]]))


def test_a_file_that_does_not_hold_together_is_refused(tmp_path):
    matrix = sp.csr_array(np.array([[1, 0, 2], [0, 3, 0]], np.uint8))
    sp.save_npz(tmp_path / "columns.npz", matrix.tocsc(), compressed=False)
    with pytest.raises(ValueError, match="must have compressed rows"):
        ArrayFile(tmp_path / "columns.npz")
    whole = {"indptr": matrix.indptr, "indices": matrix.indices.astype(np.uint16), "counts": matrix.data}
    np.savez(tmp_path / "good.npz", **whole)
    assert ArrayFile(tmp_path / "good.npz").n_features == 3
    with pytest.raises(ValueError, match="has word 2, beyond 2 words"):
        ArrayFile(tmp_path / "good.npz", n_features=2)
    np.savez(tmp_path / "short.npz", **{**whole, "indptr": np.array([0, 2, 9])})
    with pytest.raises(ValueError, match="indptr does not fit"):
        ArrayFile(tmp_path / "short.npz")
