import gzip
import io

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from scipy import sparse

from flockstep.lda import LDA, model_files
from flockstep.lda.data import sources
from flockstep.lda.data.sources import Kind
from flockstep.lda.data.streams import Stream
from flockstep.lda.data.text import Words

COUNTS = np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 3, 0, 0], [1, 1, 1, 0]])
VOCABULARY = ["ship", "sea", "oven", "bread"]


def uci(counts=COUNTS):
    entries = [f"{d + 1} {w + 1} {counts[d, w]}\n" for d, w in zip(*np.nonzero(counts), strict=True)]
    return f"{counts.shape[0]}\n{counts.shape[1]}\n{len(entries)}\n{''.join(entries)}".encode()


def arrays(**more):
    rows = sparse.csr_array(COUNTS)
    file = io.BytesIO()
    np.savez(file, indptr=rows.indptr, indices=rows.indices, counts=rows.data, **more)
    return file.getvalue()


def scipys(form="csr", **more):
    file = io.BytesIO()
    sparse.save_npz(file, sparse.csr_array(COUNTS).asformat(form), **more)
    return file.getvalue()


BAGS = {
    "docword.sea.txt": uci(),
    "docword.sea.txt.gz": gzip.compress(uci()),
    "counts.npz": arrays(),
    "scipy.npz": scipys(),
    "plain.npz": scipys(compressed=False),
}


@pytest.mark.parametrize("name", BAGS)
@pytest.mark.parametrize("held", [True, False])
def test_counts_and_the_words_beside_them(tmp_path, monkeypatch, name, held):
    (tmp_path / name).write_bytes(BAGS[name])
    beside = "vocab.sea.txt" if name.startswith("docword") else "vocab.txt.gz"
    content = "".join(f"{word}\n" for word in VOCABULARY).encode()
    (tmp_path / beside).write_bytes(gzip.compress(content) if beside.endswith("gz") else content)
    if not held:
        monkeypatch.setattr(sources, "_HELD", 0)
    source = sources.open_source(tmp_path / name)
    assert source.vocabulary == VOCABULARY
    assert source.kind is (Kind.uci if "docword" in name else Kind.npz)
    assert isinstance(source.counts, Stream) is not held
    whole = source.counts if held else sparse.vstack(list(source.counts))
    assert np.array_equal(whole.toarray(), COUNTS)
    assert source.titles([0]) == source.snippets([0]) == {}


def test_counts_without_words(tmp_path):
    (tmp_path / "counts.npz").write_bytes(scipys())
    source = sources.open_source(tmp_path / "counts.npz")
    assert source.vocabulary is None
    assert source.counts.shape == (4, 4)


def test_texts_of_a_folder_and_of_lines(tmp_path):
    texts = ["ship sea ship", "sea sea", "oven bread sea"]
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text)
    (tmp_path / "lines.txt").write_text("\n".join(texts))
    words = Words(min_df=1, max_df=1.0)
    by_file, by_line = (sources.open_source(tmp_path / name, words=words) for name in ("texts", "lines.txt"))
    assert (by_file.kind, by_line.kind) == (Kind.folder, Kind.lines)
    assert by_file.vocabulary == by_line.vocabulary == ["bread", "oven", "sea", "ship"]
    assert np.array_equal(by_file.counts.toarray(), [[0, 0, 1, 2], [0, 0, 2, 0], [1, 1, 1, 0]])
    assert np.array_equal(by_line.counts.toarray(), by_file.counts.toarray())
    assert (by_file.titles([2]), by_line.titles([2])) == ({2: "2.txt"}, {2: "line 3"})
    assert by_file.snippets([2]) == by_line.snippets([2]) == {2: "oven bread sea"}


def test_a_text_that_begins_with_numbers_is_a_text(tmp_path):
    (tmp_path / "text.txt").write_text("1984\n2001 was a film\n42\n")
    assert sources.kind_of(tmp_path / "text.txt") is Kind.lines


@pytest.mark.parametrize("name", ["texts.txt", *BAGS])
def test_new_documents_come_in_the_columns_of_a_model(tmp_path, name):
    model = LDA(n_components=2, max_iter=1, random_state=0).fit(sparse.csr_matrix(np.vstack([COUNTS, np.eye(4)])))
    model_files.save(tmp_path / "model", model, VOCABULARY)
    new = BAGS.get(name, b"Ship oven, ship!\n\nsea sea sea unknown\nship sea oven\n")
    (tmp_path / name).write_bytes(new)
    blocks, _ = sources.open_like(model_files.read(tmp_path / "model"), tmp_path / name)
    assert np.array_equal(sparse.vstack(list(blocks)).toarray(), COUNTS)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("nothing.txt", b"", r"nothing\.txt is empty"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00", r"picture\.png is of no known format; known are a folder"),
        ("hidden.txt", gzip.compress(b"text"), r"hidden\.txt is of no known format"),
        ("cut.txt.gz", gzip.compress(b"text " * 9000)[:40], r"cut\.txt\.gz is damaged"),
        ("no.txt.gz", b"not compressed", r"no\.txt\.gz is damaged"),
        ("cut.npz", scipys()[:200], r"cut\.npz is damaged"),
        ("columns.npz", scipys("csc"), r"columns\.npz: expected documents in compressed rows \(csr\), got b'csc'"),
        ("other.npz", b"", r"other\.npz: expected arrays indptr, indices and counts, got a"),
        ("cut.uci", uci()[:-4], r"cut\.uci"),
        ("stop.txt", b"a 1 b 2\n", r"stop\.txt: empty vocabulary"),
        ("latin.txt", b"ein \xc4rger\n", r"line 1 of .*latin\.txt is not utf-8 text"),
    ],
    # By name: what a file holds may hold the time it was made at.
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, sentence):
    path = tmp_path / name
    path.write_bytes(content)
    if name == "other.npz":
        np.savez(path, a=np.ones(3))
    with pytest.raises(ValueError, match=sentence):
        sources.open_source(path)


def test_words_that_do_not_fit(tmp_path):
    (tmp_path / "vocab.txt").write_text("one\ntwo\n")
    for name in ("scipy.npz", "counts.npz", "docword.sea.txt"):
        (tmp_path / name).write_bytes(BAGS[name])
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            sources.open_source(tmp_path / name)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"vocab\.txt is not UTF-8 text"):
        sources.open_source(tmp_path / "scipy.npz")
    (tmp_path / "lines.txt").write_text("a text")
    with pytest.raises(ValueError, match=r"lines\.txt is a text file .* leave the vocabulary .*vocab\.txt out"):
        sources.open_source(tmp_path / "lines.txt", vocabulary=tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match=r"there is neither a file nor a folder .*nowhere"):
        sources.open_source(tmp_path / "nowhere")


def test_a_model_without_words_takes_no_texts(tmp_path):
    model = LDA(n_components=2, max_iter=1, random_state=0).fit(sparse.csr_matrix(np.vstack([COUNTS, np.eye(4)])))
    (tmp_path / "lines.txt").write_text("a text")
    with pytest.raises(ValueError, match=r"lines\.txt .* the model was saved without words and takes only counts"):
        sources.open_like(model_files.Saved(model, None, None), tmp_path / "lines.txt")
    (tmp_path / "wide.uci").write_bytes(uci(np.ones((2, 5), dtype=int)))
    with pytest.raises(ValueError, match=r"wide\.uci has 5 words, but the model was fitted with 4"):
        sources.open_like(model_files.Saved(model, None, None), tmp_path / "wide.uci")
