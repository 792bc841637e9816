"""Documents as compressed rows in memory, and as batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from flockstep.lda.core.learner import Batch
from flockstep.lda.core.topics import Floats, Words


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Compressed rows in the types the compiled loops are made for."""

    starts: NDArray[np.int64]
    words: Words
    counts: Floats

    @classmethod
    def of(cls, matrix: Any) -> Corpus:
        """From a SciPy matrix in CSR form, or from a dense one."""
        rows = matrix if sp.issparse(matrix) else sp.csr_array(matrix)
        return cls(
            starts=np.asarray(rows.indptr, np.int64),
            words=np.asarray(rows.indices, np.int32),
            counts=np.asarray(rows.data, np.float32),
        )

    @cached_property
    def length(self) -> float:
        """Words of a document, on average; infinite where counts are not whole, and no word stands for itself."""
        whole = bool((self.counts == np.floor(self.counts)).all())
        return float(self.counts.sum(dtype=np.float64)) / max(1, len(self)) if whole else math.inf

    def __len__(self) -> int:
        return self.starts.size - 1

    def part(self, first: int, last: int) -> Corpus:
        """Documents first to last, the last left out."""
        begin, end = self.starts[first], self.starts[last]
        return Corpus(
            starts=self.starts[first : last + 1] - begin, words=self.words[begin:end], counts=self.counts[begin:end]
        )

    def rows(self, chosen: NDArray[np.int64]) -> Corpus:
        """A copy of some documents."""
        lengths = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        at = np.arange(starts[-1]) + np.repeat(self.starts[:-1][chosen] - starts[:-1], lengths)
        return Corpus(starts=starts, words=self.words[at], counts=self.counts[at])

    def batches(
        self, size: int, rng: np.random.Generator, *, shuffle: bool = True, memory: Floats | None = None
    ) -> Iterator[Batch]:
        """All documents once; they begin at noise, or where ``memory`` has them."""
        order = rng.permutation(len(self)) if shuffle else np.arange(len(self))
        for first in range(0, len(self), size):
            yield Batch(
                starts=self.starts,
                words=self.words,
                counts=self.counts,
                chosen=order[first : first + size],
                seed=int(rng.integers(2**63)),
                length=self.length,
                memory=memory,
            )


@dataclass(frozen=True, kw_only=True)
class Supply:
    """Documents wherever they are: in one piece, or read in pieces."""

    read: Callable[[], Iterator[Corpus]]
    n_features: int
    n_documents: float
    again: bool = True
    in_pieces: bool = False
    _first: list[Corpus] = field(default_factory=list)

    def batches(self, size: int, rng: np.random.Generator, *, shuffle: bool = True) -> Iterator[Batch]:
        """All documents once, shuffled within each piece."""
        for corpus in self.read():
            if not self._first:
                self._first.append(corpus)
            yield from corpus.batches(size, rng, shuffle=shuffle)

    def sample(self, most: int, rng: np.random.Generator) -> Corpus:
        """Some documents of the first piece."""
        if not self._first:
            self._first.append(next(self.read()))
        first = self._first[0]
        return first if len(first) <= most else first.rows(np.sort(rng.choice(len(first), most, replace=False)))
