"""What a path holds, told by looking at it: a folder of texts, lines of text, a table, a bag-of-words file, an npz."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from flockstep.lda.data.streams import ArrayFile, BagOfWords, Stream, mapped
from flockstep.lda.data.tables import Table, is_table
from flockstep.lda.data.text import HOW, UTF16, Folder, Lines, Texts, Words, counted, recounted
from flockstep.lda.model_files import Saved

# A larger file of counts is read anew at every pass: in memory it would take several times as much.
_HELD = 2**28


class Kind(StrEnum):
    """The sources there are."""

    folder = "a folder of texts"
    lines = "a text file with a document per line"
    table = "a table (CSV, TSV or JSON lines) with texts in a column"
    uci = "a UCI bag-of-words file"
    npz = "an npz of counts"


TEXTS = (Kind.folder, Kind.lines, Kind.table)
"""Those whose words are still to be counted."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A corpus that was opened: counts, and what is known of words and documents."""

    kind: Kind
    name: str
    """Of the file or folder."""
    counts: Any
    """A CSR matrix, or a stream of them where it is large."""
    vocabulary: list[str] | None
    text: dict[str, Any] | None = None
    """How texts were turned into words, where they were."""
    texts: Texts | None = None
    by: str = ""
    labels: list[str] | None = None
    """What a column of that name says of each document."""

    def titles(self, numbers: Iterable[int]) -> dict[int, str]:
        """What to call these documents; nothing where they have no names."""
        return {} if self.texts is None else {number: self.texts.title(number) for number in numbers}

    def snippets(self, numbers: Iterable[int]) -> dict[int, str]:
        """How these documents begin; nothing where only their counts are known."""
        return {} if self.texts is None else self.texts.snippets(numbers)


def kind_of(path: Path) -> Kind:
    """Look at a path; a file that is neither text nor known is an error."""
    if path.is_dir():
        return Kind.folder
    if not path.is_file():
        raise ValueError(f"there is neither a file nor a folder {path}")
    with _named(path), _plain(path) as file:
        begin = file.read(4096)
    if not begin:
        raise ValueError(f"{path} is empty")
    if begin.startswith(b"PK\x03\x04"):
        return Kind.npz
    if is_table(path, begin):
        return Kind.table
    if begin.startswith(UTF16):
        raise ValueError(f"{path} is UTF-16 text, whose lines we do not tell apart: save it as UTF-8")
    if b"\x00" in begin or begin.startswith(b"\x1f\x8b"):
        raise ValueError(f"{path} is of no known format; known are {', '.join(Kind)}")
    lines = begin.split(b"\n")
    # Number of documents, of words, of entries: three lines with one number each, as hardly a text begins.
    return Kind.uci if len(lines) > 3 and all(line.strip().isdigit() for line in lines[:3]) else Kind.lines


def open_source(
    path: Path,
    *,
    words: Words | None = None,
    vocabulary: Path | None = None,
    pattern: str = "*",
    encoding: str = "utf-8",
    column: str | None = None,
    by: str | None = None,
) -> Source:
    """A corpus to learn from."""
    kind = kind_of(path)
    if kind in TEXTS:
        if vocabulary is not None:
            raise ValueError(f"{path} is {kind}, whose words are its own: leave the vocabulary {vocabulary} out")
        texts = _texts(path, kind, pattern, encoding, column)
        counts, found, text = _counted(path, texts, words)
        labels = None if by is None else labels_of(texts, by)
        return Source(
            kind=kind,
            name=path.name,
            counts=counts,
            vocabulary=found,
            text=text,
            texts=texts,
            by=by or "",
            labels=labels,
        )
    vocabulary = vocabulary or vocabulary_beside(path)
    named = None if vocabulary is None else read_vocabulary(vocabulary)
    stream = _stream(path, kind, None if named is None else len(named))
    if named is not None and len(named) != stream.n_features:
        raise ValueError(f"{vocabulary} has {len(named)} words, but {path} {stream.n_features}")
    return Source(
        kind=kind,
        name=path.name,
        counts=stream if path.stat().st_size > _HELD else _held(path, stream),
        vocabulary=named,
    )


def open_like(
    saved: Saved, path: Path, *, pattern: str = "*", encoding: str = "utf-8", column: str | None = None
) -> tuple[Iterable[Any], Source]:
    """New documents as blocks of counts in the columns of a saved model, and what they are called."""
    kind = kind_of(path)
    if kind in TEXTS:
        if saved.vocabulary is None:
            raise ValueError(f"{path} is {kind}, but the model was saved without words and takes only counts")
        texts = _texts(path, kind, pattern, encoding, column)
        text = saved.text or HOW
        return recounted(texts, saved.vocabulary, text), Source(
            kind=kind, name=path.name, counts=None, vocabulary=saved.vocabulary, text=text, texts=texts
        )
    stream = _stream(path, kind, saved.model.n_features_in_)
    if stream.n_features != saved.model.n_features_in_:
        raise ValueError(
            f"{path} has {stream.n_features} words, but the model was fitted with {saved.model.n_features_in_}"
        )
    return stream, Source(kind=kind, name=path.name, counts=None, vocabulary=saved.vocabulary)


def labels_of(texts: Texts | None, column: str) -> list[str]:
    """What a column says of each document."""
    if isinstance(texts, Table):
        return texts.labels(column)
    raise ValueError(f"only a table has a column {column!r} to tell topics by")


def read_vocabulary(path: Path) -> list[str]:
    """A word per line; the file may be compressed (.gz)."""
    with _named(path), _plain(path) as file:
        return [line.rstrip(b"\r\n").decode("utf8") for line in file]


def vocabulary_beside(path: Path) -> Path | None:
    """The words that usually lie beside such counts: vocab.nips.txt beside docword.nips.txt.gz, or vocab.txt."""
    stem = path.name.removesuffix(".gz").removesuffix(".txt").removesuffix(".npz")
    names = [f"{stem.replace('docword', 'vocab')}.txt"] if stem.startswith("docword") else []
    names += ["vocab.txt", "vocabulary.txt"]
    candidates = [path.parent / f"{name}{ending}" for name in names for ending in ("", ".gz")]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _texts(path: Path, kind: Kind, pattern: str, encoding: str, column: str | None) -> Texts:
    if kind is Kind.table:
        return Table(path, column=column, encoding=encoding)
    if column is not None:
        raise ValueError(f"{path} is {kind}, which has no column {column!r}")
    if kind is Kind.folder:
        return Folder(path, pattern=pattern, encoding=encoding)
    return Lines(path, encoding=encoding)


def _counted(path: Path, texts: Texts, words: Words | None) -> tuple[Any, list[str], dict[str, Any]]:
    # scikit-learn's complaints about words do not say whose.
    with _named(path):
        return counted(texts, words)


def _stream(path: Path, kind: Kind, columns: int | None) -> Stream:
    return _File(path, _unnamed(path, kind, columns))


def _unnamed(path: Path, kind: Kind, columns: int | None) -> Stream:
    with _named(path):
        if kind is Kind.uci:
            return BagOfWords(path)
        # Opened here, since numpy leaves a damaged one open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            form = file["format"].item() if "format" in file.files else b"csr"
            names = set(file.files)
        if form not in (b"csr", "csr"):
            raise ValueError(f"{path}: expected documents in compressed rows (csr), got {form!r}")
        if "indices" not in names:
            raise ValueError(f"{path}: expected arrays indptr, indices and counts, got {', '.join(sorted(names))}")
        indices = mapped(path, "indices")
        found = int(indices.max()) + 1 if indices.size else 0
        # Without a shape of its own, the last words may just not occur.
        stream = ArrayFile(path, n_features=None if "shape" in names else columns or found)
        if found > stream.n_features:
            raise ValueError(f"{path} has {found} words or more, but {stream.n_features} were expected")
        return stream


class _File(Stream):
    """A stream whose troubles say which file it was."""

    def __init__(self, path: Path, stream: Stream) -> None:
        self._path, self._stream = path, stream
        self.n_features, self.n_documents = stream.n_features, stream.n_documents

    def __iter__(self) -> Iterator[Any]:
        with _named(self._path):
            yield from self._stream


def _held(path: Path, stream: Stream) -> Any:
    blocks = list(stream)
    if not blocks:
        raise ValueError(f"{path} holds no documents")
    return sparse.vstack(blocks, format="csr")


def _plain(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What reading damaged files raises is of many kinds, few of which say which file it was."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from None
