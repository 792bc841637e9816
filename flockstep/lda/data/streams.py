"""Corpora that need not fit in memory: read block by block, again for every pass where the source allows.

Blocks(...)       CSR matrices from a list, a function that makes an iterator, or an iterator (once)
BagOfWords(...)   a UCI file: three header lines D, W, NNZ, then "document word count", plain or .gz
ArrayFile(...)    an npz with indptr, indices and counts (or data), mapped into memory where it is not compressed
"""

from __future__ import annotations

import gzip
import itertools
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from flockstep import check
from flockstep.lda.core.expectations import compiled

_READ = 1 << 22


class Stream(ABC):
    """Documents in blocks of compressed rows."""

    n_features: int
    """How many words there are."""
    n_documents: int | None = None
    """How many documents there are, where that is known."""
    again: bool = True
    """Whether it can be read more than once."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """The blocks, each a CSR matrix of documents by words."""


class Blocks(Stream):
    """CSR matrices from anywhere."""

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]], *, n_documents: int | None = None) -> None:
        self._make = source if callable(source) else lambda: source
        first = iter(self._make())
        self.again = callable(source) or first is not source
        head = next(first, None)
        if head is None:
            raise ValueError("Blocks.source must have at least one block, got none")
        self.n_features, self.n_documents = int(head.shape[1]), n_documents
        self._rest: Iterator[Any] | None = None if self.again else itertools.chain([head], first)

    def __iter__(self) -> Iterator[Any]:
        if self.again:
            return iter(self._make())
        rest, self._rest = self._rest, None
        if rest is None:
            raise ValueError("these Blocks were read already, and come from an iterator, which can be read once")
        return rest


class BagOfWords(Stream):
    """A bag-of-words file as the UCI repository has them; documents in order, both numbers from 1."""

    def __init__(self, path: str | Path, *, block: int = 8192) -> None:
        self._path, self._block = Path(path), check.whole(self, "block", block)
        with self._open() as file:
            head = [file.readline().split() for _ in range(3)]
        try:
            self.n_documents, self.n_features, self.n_entries = (int(words[0]) for words in head if len(words) == 1)
        except ValueError as error:
            raise ValueError(f"{path}: expected three lines with one number each (D, W, NNZ) at the top") from error

    def _open(self) -> IO[bytes]:
        return gzip.open(self._path, "rb") if self._path.suffix == ".gz" else self._path.open("rb")  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Any]:
        first, kept, seen = 0, np.empty((0, 3), np.int64), 0
        for entries in self._entries():
            self._see(entries, int(kept[-1, 0]) if len(kept) else first + 1)
            kept, seen = np.concatenate([kept, entries]), seen + len(entries)
            # The last document of what was read may go on.
            while len(kept) and kept[-1, 0] > first + self._block:
                here = int(np.searchsorted(kept[:, 0], first + self._block, side="right"))
                yield self._rows(kept[:here], first, self._block)
                first, kept = first + self._block, kept[here:]
        if seen != self.n_entries:
            raise ValueError(f"{self._path}: has {seen} entries, but its header says {self.n_entries}")
        for begin in range(first, self.n_documents or 0, self._block):
            here = int(np.searchsorted(kept[:, 0], begin + self._block, side="right"))
            yield self._rows(kept[:here], begin, min(self._block, (self.n_documents or 0) - begin))
            kept = kept[here:]

    def _entries(self) -> Iterator[NDArray[np.int64]]:
        with self._open() as file:
            for _ in range(3):
                file.readline()
            while text := file.read(_READ):
                text += file.readline()
                numbers, bad = _numbers(np.frombuffer(text, np.uint8))
                if bad >= 0 or numbers.size % 3:
                    around = text[max(0, bad - 20) : bad + 20] if bad >= 0 else text[-40:]
                    raise ValueError(f"{self._path}: expected lines 'document word count', got {around!r}")
                yield numbers.reshape(-1, 3)

    def _see(self, entries: NDArray[np.int64], last: int) -> None:
        documents, words = entries[:, 0], entries[:, 1]
        if documents[0] < last or (np.diff(documents) < 0).any():
            raise ValueError(f"{self._path}: documents must be in order, sort the file by its first column")
        if documents[-1] > (self.n_documents or 0) or words.min() < 1 or words.max() > self.n_features:
            raise ValueError(f"{self._path}: has a document or a word beyond what its header says")

    def _rows(self, entries: NDArray[np.int64], first: int, documents: int) -> Any:
        lengths = np.bincount(entries[:, 0] - first - 1, minlength=documents)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        data = entries[:, 2].astype(np.float32), (entries[:, 1] - 1).astype(np.int32), starts
        return sp.csr_array(data, shape=(documents, self.n_features))


class ArrayFile(Stream):
    """Compressed rows in an npz file; ``np.savez`` and ``scipy.sparse.save_npz(compressed=False)`` can be mapped."""

    def __init__(self, path: str | Path, *, n_features: int | None = None, block: int = 8192) -> None:
        self._block = check.whole(self, "block", block)
        with np.load(path, allow_pickle=False) as file:
            names = set(file.files)
            shape = file["shape"] if "shape" in names else None
            kind = bytes(file["format"].item()).decode() if "format" in names else "csr"
        if kind != "csr":
            raise ValueError(f"{path}: must have compressed rows (csr), got {kind}")
        counts = "counts" if "counts" in names else "data"
        for name in ("indptr", "indices", counts):
            if name not in names:
                raise ValueError(f"{path}: expected arrays indptr, indices and counts, got {', '.join(sorted(names))}")
        self._starts = np.asarray(mapped(path, "indptr"), np.int64)
        self._path, self._names = Path(path).absolute(), ("indices", counts)
        self._words, self._counts = (mapped(path, name) for name in self._names)
        self.n_documents = self._starts.size - 1
        known = n_features if n_features is not None else None if shape is None else int(shape[1])
        found = int(self._words.max()) + 1 if self._words.size else 0
        self.n_features = found if known is None else known
        if found > self.n_features:
            raise ValueError(f"{path}: has word {found - 1}, beyond {self.n_features} words")
        if (np.diff(self._starts) < 0).any() or self._starts[0] != 0 or self._starts[-1] != self._words.size:
            raise ValueError(f"{path}: indptr does not fit to {self._words.size} indices")

    def __getstate__(self) -> dict[str, Any]:
        # To another process goes where the arrays are, not what is in them.
        return {name: value for name, value in vars(self).items() if name not in ("_words", "_counts")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._words, self._counts = (mapped(self._path, name) for name in self._names)

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, self._starts.size - 1, self._block):
            starts = self._starts[first : first + self._block + 1]
            part = slice(int(starts[0]), int(starts[-1]))
            data = self._counts[part].astype(np.float32), self._words[part].astype(np.int32), starts - starts[0]
            yield sp.csr_array(data, shape=(starts.size - 1, self.n_features))


def mapped(path: str | Path, name: str) -> NDArray[Any]:
    """One array of an npz file, mapped into memory if it is stored as it is, else read."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            header = file.tell()
            if member.compress_type != zipfile.ZIP_STORED or dtype.hasobject or fortran:
                with np.load(path, allow_pickle=False) as whole:
                    return np.asarray(whole[name])
    with Path(path).open("rb") as raw:
        raw.seek(member.header_offset + 26)
        name_length, extra_length = np.frombuffer(raw.read(4), "<u2")
    offset = member.header_offset + 30 + int(name_length) + int(extra_length) + header
    return np.memmap(path, dtype, "r", offset, shape) if np.prod(shape) else np.empty(shape, dtype)


@compiled
def _numbers(text: Any) -> Any:
    """The whole numbers in a text of digits and spaces, and where something else is (-1: nowhere)."""
    found, count, bad = np.empty(text.size // 2 + 1, np.int64), 0, -1
    number, inside = 0, False
    for i in range(text.size):
        if 48 <= text[i] <= 57:
            number = number * 10 + text[i] - 48
            inside = True
        elif text[i] == 32 or 9 <= text[i] <= 13:
            if inside:
                found[count] = number
                count += 1
            number, inside = 0, False
        elif bad < 0:
            bad = i
    if inside:
        found[count] = number
        count += 1
    return found[:count].copy(), bad
