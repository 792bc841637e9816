"""Logistic regression on sparse rows, whose steps touch few coordinates and leave the interpreter lock."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flockstep import check
from flockstep.workloads import sparse_steps
from flockstep.workloads.datasets import read_libsvm
from flockstep.workloads.labelled import libsvm_file, signs_of
from flockstep.workloads.sharding import deal
from flockstep.workloads.sparse_rows import CSR, compressed, signed

_NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
# Row numbers drawn at once: enough that drawing costs little, and half a megabyte.
_DRAWN_AT_ONCE = 2**16


class SparseLogistic:
    """Logistic regression: mean_j log(1 + exp(-y_j (w'a_j + c))) + l2/2 ||x||^2; x is w, then the bias c.

    The loss of ``convex.Logistic``, with gradients that touch only the coordinates of the rows drawn. The l2 term
    would touch all: here a row has its share of it, l2 * x_i / f_i on each coordinate i it touches, where f_i is the
    fraction of this shard's rows that touch i. The mean over all rows is l2 * x_i, so it is the same term in
    expectation; a coordinate that no row of the shard touches has none, and never moves. Where one row of n touches
    a coordinate its share is n * l2 * x_i, so a learning rate beyond 2 / (n * l2) would make that one swing and grow.

    The data is the name of a file in the data folder ``libsvm``, a path to a LIBSVM file, or a pair of features,
    dense or CSR, and labels (-1 or +1). Batches are drawn with replacement. A node's rows are random at
    heterogeneity 0, and sorted by label at 1.

    ``descend`` takes many steps and writes to its vector after every ``publish`` of them. For a single core that
    changes no bit. For several cores on one vector 1 is Hogwild to the letter, where a short vector wanders between
    their caches and two cores are slower than one; with more, a step may miss so many of each other core's last ones.
    """

    leaves_interpreter_lock = True
    """Of ``descend``: threads may run it side by side."""

    def __init__(
        self,
        *,
        data: str | Path | tuple[ArrayLike | CSR, ArrayLike] = "a9a",
        batch: int = 1,
        l2: float = 1e-4,
        heterogeneity: float = 0.0,
        publish: int = 128,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._batch = check.whole(self, "batch", batch)
        self._l2 = check.not_negative(self, "l2", l2)
        self._heterogeneity = check.fraction(self, "heterogeneity", heterogeneity)
        self._publish = check.whole(self, "publish", publish)
        self._seed = check.whole(self, "seed", seed, at_least=0)
        self._dtype = check.one_of(self, "dtype", dtype, _NUMPY)
        features, labels = data if isinstance(data, tuple) else read_libsvm(libsvm_file("SparseLogistic", data))
        rows, width = compressed(features)
        self._labels = signs_of("SparseLogistic", labels, len(rows.starts) - 1)
        self._starts, self._columns, self._values = signed(rows, width, self._labels, _NUMPY[dtype])
        self._dim = width + 1
        self._take_rows(np.arange(len(self._labels)))

    def start(self) -> Tensor:
        """Zeros: every answer is a coin toss."""
        return torch.zeros(self._dim, dtype=self._dtype)

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """The gradient on ``batch`` rows of this shard, zero where none of them has a number."""
        drawn = self._rows.take(rng.integers(len(self._rows), size=self._batch))
        g = torch.zeros(self._dim, dtype=self._dtype)
        sparse_steps.gradient(self._memory(x), *self._problem, drawn, g.numpy())
        return g

    def descend(self, x: Tensor, rng: np.random.Generator, steps: int, rate: float) -> None:
        """So many steps ``x <- x - rate * gradient(x, rng)``, in the memory of ``x`` and with the same draws."""
        check.whole(self, "steps", steps, at_least=0)
        check.real(self, "rate", rate)
        memory, scratch = self._memory(x), self._own_scratch()
        at_once = max(1, _DRAWN_AT_ONCE // self._batch // self._publish) * self._publish
        for first in range(0, steps, at_once):
            drawn = rng.integers(len(self._rows), size=(min(at_once, steps - first), self._batch))
            sparse_steps.descend(memory, *self._problem, self._rows.take(drawn), float(rate), self._publish, *scratch)

    def loss(self, x: Tensor) -> float:
        """The regularised loss over all rows of all nodes."""
        # A diverged x has an infinite loss, which is for the caller to report.
        with np.errstate(all="ignore"):
            wide = self._memory(x).astype(np.float64)
            fit = np.logaddexp(0, -self._margins(wide)).mean()
            return float(fit + 0.5 * self._l2 * (wide @ wide))

    def accuracy(self, x: Tensor) -> float:
        """The fraction of all rows, of all nodes, that ``x`` puts on the right side."""
        return float((self._margins(self._memory(x).astype(np.float64)) > 0).mean())

    def shard(self, rank: int, size: int) -> SparseLogistic:
        """The rows of node ``rank``; the data itself is shared, not copied."""
        part = copy.copy(self)
        mixture, seed = self._heterogeneity, self._seed
        part._take_rows(deal(len(self._labels), rank, size, heterogeneity=mixture, seed=seed, order=self._labels))
        return part

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseLogistic:
        # Nobody writes to the data: all that another thread needs for itself is the scratch.
        twin = copy.copy(self)
        twin._scratch = None
        return twin

    def _take_rows(self, rows: NDArray[np.int64]) -> None:
        self._rows = rows
        self._scratch: _Scratch | None = None
        mine = np.zeros(len(self._labels), dtype=bool)
        mine[rows] = True
        lengths = np.diff(self._starts)
        touching = np.bincount(self._columns[np.repeat(mine, lengths)], minlength=self._dim)
        pull = self._l2 * len(rows) / np.maximum(touching, 1)
        self._problem = self._starts, self._columns, self._values, pull.astype(self._values.dtype)

    def _own_scratch(self) -> _Scratch:
        if self._scratch is None:
            values, longest = self._values.dtype, int(np.diff(self._starts).max())
            self._scratch = _Scratch(
                mine=np.empty(self._dim, values),
                before=np.empty(self._dim, values),
                held=np.zeros(self._dim, dtype=bool),
                touched=np.empty(self._dim, self._columns.dtype),
                changes=np.empty(self._batch * longest, values),
            )
        return self._scratch

    def _memory(self, x: Tensor) -> NDArray[Any]:
        # The loops trust what they are given, and would write beyond a vector that is too short.
        if x.shape != (self._dim,) or x.dtype != self._dtype or not x.is_contiguous():
            raise ValueError(
                f"SparseLogistic takes vectors like start(), contiguous ({self._dim},) of {self._dtype},"
                f" got {tuple(x.shape)} of {x.dtype}"
            )
        memory: NDArray[Any] = x.detach().numpy()
        return memory

    def _margins(self, wide: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of every row; positive where the answer is right. No row is empty: each has the bias."""
        margins: NDArray[np.float64] = np.add.reduceat(self._values * wide[self._columns], self._starts[:-1])
        return margins


class _Scratch(NamedTuple):
    """What ``sparse_steps.descend`` works in: one for each thread."""

    mine: NDArray[Any]
    before: NDArray[Any]
    held: NDArray[Any]
    touched: NDArray[Any]
    changes: NDArray[Any]
