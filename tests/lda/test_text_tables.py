"""Texts in a column of a table: read as other readers read them, or refused by name."""

import csv
import gzip
import json

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs pip install 'flockstep[lda]'")

from flockstep.lda import LDA, load, save
from flockstep.lda.data import sources
from flockstep.lda.data.tables import Table
from flockstep.lda.data.text import Words
from flockstep.lda.model_files import read

TEXTS = ["the sea, the salt", 'a "quoted" word\nand a second line', "", "Ünïcode words", "last words of the sea"]


def as_csv(path, delimiter=",", encoding="utf-8", opened=open):
    with opened(path, "wt", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "body", "year"])
        writer.writerows([k, text, 1990 + k] for k, text in enumerate(TEXTS))
    return path


def as_jsonl(path, opened=open):
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": k, "body": text or None}) + "\n" for k, text in enumerate(TEXTS))
    return path


WRITTEN = {
    "a.csv": as_csv,
    "a.tsv": lambda path: as_csv(path, "\t"),
    "A.CSV.gz": lambda path: as_csv(path, opened=gzip.open),
    "spreadsheet.csv": lambda path: as_csv(path, encoding="utf-8-sig"),
    "a.jsonl": as_jsonl,
    "a.ndjson.gz": lambda path: as_jsonl(path, gzip.open),
    "named_otherwise.txt": as_jsonl,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_column_is_read(tmp_path, name):
    path = WRITTEN[name](tmp_path / name)
    assert sources.kind_of(path) is sources.Kind.table
    table = Table(path, column="body")
    assert list(table) == TEXTS
    assert len(table) == 5
    assert table.title(1) == "row 2"
    assert table.snippets([1, 3]) == {1: 'a "quoted" word and a second line', 3: TEXTS[3]}


def test_other_encodings(tmp_path):
    for encoding in ("utf-16", "utf-32", "utf-8"):
        assert list(Table(as_csv(tmp_path / "a.csv", encoding=encoding), column="body", encoding=encoding)) == TEXTS


@pytest.mark.parametrize("name", WRITTEN)
def test_without_a_column_its_names_are_told(tmp_path, name):
    path = WRITTEN[name](tmp_path / name)
    with pytest.raises(ValueError, match=r"columns id, body.*: name the one that has the texts \(--column\)"):
        sources.open_source(path)
    with pytest.raises(ValueError, match=r"has no column 'text'; it has id, body"):
        sources.open_source(path, column="text")


def test_short_rows_and_empty_lines(tmp_path):
    (tmp_path / "a.csv").write_text("id,body\n1,one\n\n2\n3,three\n")
    assert list(Table(tmp_path / "a.csv", column="body")) == ["one", "", "three"]


def test_a_long_text(tmp_path):
    (tmp_path / "a.csv").write_text("body\n" + "word " * 100_000 + "\n")
    assert len(next(iter(Table(tmp_path / "a.csv", column="body")))) == 500_000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", r"line 2 of .*a\.jsonl is not JSON"),
        ("[1]", r"line 2 of .*a\.jsonl is not a JSON object"),
        ('{"body": 3}', r"line 2 of .*a\.jsonl: 'body' must be a text, got 3"),
    ],
)
def test_what_is_no_row(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_text(f'{{"body": "fine"}}\n{line}\n')
    with pytest.raises(ValueError, match=said):
        list(Table(tmp_path / "a.jsonl", column="body"))


def test_what_is_damaged_or_otherwise_encoded(tmp_path):
    (tmp_path / "a.csv").write_bytes("body\nÜ\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.csv is not utf-8 text.*\n.*name its encoding"):
        list(Table(tmp_path / "a.csv", column="body"))
    assert list(Table(tmp_path / "a.csv", column="body", encoding="latin-1")) == ["Ü"]
    with pytest.raises(ValueError, match="there is no encoding 'klingon'"):
        Table(tmp_path / "a.csv", column="body", encoding="klingon")
    whole = gzip.compress(as_csv(tmp_path / "b.csv").read_bytes())
    (tmp_path / "b.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"b\.csv\.gz is damaged"):
        list(Table(tmp_path / "b.csv.gz", column="body"))


def test_a_column_of_what_has_none(tmp_path):
    (tmp_path / "a.txt").write_text("one two\ntwo three\n")
    with pytest.raises(ValueError, match=r"a\.txt is a text file with a document per line, which has no column 'body'"):
        sources.open_source(tmp_path / "a.txt", column="body")


def test_utf_16_is_recognised(tmp_path):
    (tmp_path / "a.txt").write_text("one two\ntwo three\n", encoding="utf-16")
    with pytest.raises(ValueError, match=r"a\.txt is UTF-16 text, .*: save it as UTF-8"):
        sources.open_source(tmp_path / "a.txt")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a").write_text("one two two one", encoding="utf-16")
    (tmp_path / "texts" / "b").write_text("one two two one", encoding="utf-16")
    with pytest.raises(ValueError, match=r"such as utf-16"):
        sources.open_source(tmp_path / "texts")
    words = Words(max_df=1.0)
    assert sources.open_source(tmp_path / "texts", encoding="utf-16", words=words).vocabulary == ["one", "two"]


def test_words_in_a_row_count_as_one_and_again_with_new_texts(tmp_path):
    (tmp_path / "a.txt").write_text("new york and the sea\nnew york of the sea\nthe new boat\n")
    words = Words(min_df=1, max_df=1.0, ngrams=2, stop_words=["the", "of", "and"])
    source = sources.open_source(tmp_path / "a.txt", words=words)
    assert source.vocabulary == ["boat", "new", "new boat", "new york", "sea", "york", "york sea"]
    model = LDA(2, max_iter=1).fit(source.counts)
    saved = read(save(tmp_path / "model", model, source.vocabulary, text=source.text))
    blocks, _ = sources.open_like(saved, tmp_path / "a.txt")
    np.testing.assert_array_equal(next(iter(blocks)).toarray(), source.counts.toarray())
    assert load(tmp_path / "model").n_features_in_ == 7


@pytest.mark.parametrize("verb", ["fit", "partial_fit", "transform"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["the sea", "the salt"], "got texts"),
        ([["the", "sea"], ["salt"]], "got texts"),
        (("the sea",), "got texts"),
        ([[(0, 1), (3, 2)], [(1, 1)]], r"got bags of \(word, count\)"),
    ],
)
def test_what_is_not_counted_yet_is_refused(verb, given, said):
    model = LDA(2, max_iter=1).fit(np.ones((3, 4))) if verb == "transform" else LDA(2)
    with pytest.raises(TypeError, match=rf"LDA\.{verb} takes counts, documents by words, and {said}"):
        getattr(model, verb)(given)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_what_another_column_says(tmp_path, name):
    path = WRITTEN[name](tmp_path / name)
    source = sources.open_source(path, column="body", by="id", words=Words(min_df=1, max_df=1.0))
    assert (source.by, source.labels) == ("id", ["0", "1", "2", "3", "4"])
    with pytest.raises(ValueError, match="has no column 'when'; it has id, body"):
        sources.open_source(path, column="body", by="when", words=Words(min_df=1, max_df=1.0))
    (tmp_path / "a.txt").write_text("one two\ntwo three\n")
    with pytest.raises(ValueError, match="only a table has a column 'id' to tell topics by"):
        sources.open_source(tmp_path / "a.txt", by="id", words=Words(min_df=1, max_df=1.0))
