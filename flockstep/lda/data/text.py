"""Texts to counts of words: a folder with a document per file, or one file with a document per line.

Texts are read one at a time and only their counts are kept. A word is a letter and one or more letters, digits or
underscores, in lower case; numbers are none. Kept are words of at least 2 documents and at most half of them, which
leaves out most function words in any language; a list of stop words is used only where asked for, since no list fits
all languages and subjects.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

HOW = {"lowercase": True, "token_pattern": r"(?u)\b[^\W\d_]\w+\b"}
"""What a word is, in scikit-learn's terms; saved with a model, so that new texts are split alike."""

UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""How such a text begins."""
_SNIPPET = 240
# Documents counted at once where there is no need to have them all.
_BLOCK = 2048


class Texts(Protocol):
    """Documents that can be read more than once, numbered from 0 in the order they are read."""

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int:
        """How many there are."""
        ...

    def title(self, number: int) -> str:
        """What to call a document."""
        ...

    def snippets(self, numbers: Iterable[int]) -> dict[int, str]:
        """How these documents begin."""
        ...


class Folder:
    """A document per file, of all files below a folder that match and are not hidden, in order of their paths."""

    def __init__(self, folder: Path, *, pattern: str = "*", encoding: str = "utf-8") -> None:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder")
        self._folder, self._encoding = folder, encoding
        self._paths = sorted(path for path in folder.rglob(pattern) if path.is_file() and not self._is_hidden(path))
        if not self._paths:
            raise ValueError(f"there are no documents in {folder}: no file below it matches {pattern!r}")

    def _is_hidden(self, path: Path) -> bool:
        return any(part.startswith(".") for part in path.relative_to(self._folder).parts)

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[str]:
        return (_decoded(path.read_bytes(), path, self._encoding) for path in self._paths)

    def title(self, number: int) -> str:
        """The path below the folder."""
        return str(self._paths[number].relative_to(self._folder))

    def snippets(self, numbers: Iterable[int]) -> dict[int, str]:
        """How these documents begin."""
        found = {}
        for number in numbers:
            found[number] = beginning(_decoded(self._paths[number].read_bytes(), self._paths[number], self._encoding))
        return found


class Lines:
    """A document per line of one file, which may be compressed (.gz); an empty line is an empty document."""

    def __init__(self, path: Path, *, encoding: str = "utf-8") -> None:
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        self._path, self._encoding = path, encoding

    def __len__(self) -> int:
        with self._open() as file:
            return sum(1 for _ in file)

    def __iter__(self) -> Iterator[str]:
        with self._open() as file:
            try:
                for number, line in enumerate(file, start=1):
                    yield _decoded(line, f"line {number} of {self._path}", self._encoding)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise ValueError(f"{self._path} is damaged: {error}") from None

    def _open(self) -> gzip.GzipFile | BufferedReader:
        return gzip.open(self._path) if self._path.suffix == ".gz" else self._path.open("rb")

    def title(self, number: int) -> str:
        """The number of the line, counted from 1 as editors do."""
        return f"line {number + 1}"

    def snippets(self, numbers: Iterable[int]) -> dict[int, str]:
        """How these documents begin."""
        wanted = set(numbers)
        return {number: beginning(text) for number, text in enumerate(self) if number in wanted}


@dataclass(frozen=True, kw_only=True)
class Words:
    """Which words to count."""

    min_df: int | float = 2
    """A word must be in so many documents (or, below 1, in this share of them)."""
    max_df: int | float = 0.5
    most: int | None = 100_000
    """How many words at most, the most frequent ones."""
    stop_words: str | list[str] | None = None
    """``"english"``, scikit-learn's list, or a list of your own."""
    ngrams: int = 1
    """Up to so many words in a row count as one, too."""


def counted(texts: Iterable[str], words: Words | None = None) -> tuple[Any, list[str], dict[str, Any]]:
    """Counts (CSR, single precision), the vocabulary, and how words were told apart, which ``recounted`` needs."""
    words = words or Words()
    text: dict[str, Any] = dict(HOW)
    if words.ngrams > 1:
        # Two words are neighbours when what was between them is left out.
        text |= {"ngram_range": [1, words.ngrams], "stop_words": words.stop_words}
    vectorizer = _vectorizer(
        {"stop_words": words.stop_words, **text}, min_df=words.min_df, max_df=words.max_df, max_features=words.most
    )
    counts = vectorizer.fit_transform(texts)
    return counts, [str(word) for word in vectorizer.get_feature_names_out()], text


def _vectorizer(text: Mapping[str, Any], **more: Any) -> CountVectorizer:
    # Files know no tuples.
    return CountVectorizer(dtype=np.float32, **{**text, "ngram_range": tuple(text.get("ngram_range", (1, 1)))}, **more)


def recounted(texts: Iterable[str], vocabulary: list[str], text: Mapping[str, Any]) -> Iterator[Any]:
    """Counts of a known vocabulary, in blocks of documents; other words are passed over."""
    vectorizer = _vectorizer(text, vocabulary=vocabulary)
    reader = iter(texts)
    while block := list(itertools.islice(reader, _BLOCK)):
        yield vectorizer.transform(block)


def _decoded(content: bytes, where: object, encoding: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        likely = "utf-16" if content.startswith(UTF16) else "latin-1"
        raise ValueError(
            f"{where} is not {encoding} text: {error.reason} at byte {error.start}\n"
            f"  name its encoding (such as {likely}), or leave the file out"
        ) from None
    except LookupError:
        raise ValueError(f"there is no encoding {encoding!r}") from None


def beginning(text: str) -> str:
    """As much of a text as shows what it is about."""
    words = " ".join(text[: 4 * _SNIPPET].split())
    return words if len(words) <= _SNIPPET else words[: _SNIPPET - 1] + "…"
