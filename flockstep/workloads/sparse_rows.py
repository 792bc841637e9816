"""Rows of which most numbers are zero, with labels of -1 or +1: checked, and laid out for compiled loops."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray


class CSR(Protocol):
    """A sparse matrix in compressed rows, by the names SciPy gives its parts."""

    indptr: Any
    """Where each row begins in ``indices`` and ``data``, and where the last one ends."""
    indices: Any
    """The column of each number, rising within a row."""
    data: Any
    shape: Any


class Rows(NamedTuple):
    """Compressed rows as NumPy arrays."""

    starts: NDArray[np.int64]
    columns: NDArray[Any]
    values: NDArray[Any]


def compressed(features: ArrayLike | CSR) -> tuple[Rows, int]:
    """The rows of a matrix, dense or CSR, checked, and how many columns it has."""
    if all(hasattr(features, part) for part in ("indptr", "indices", "data", "shape")):
        shape = tuple(features.shape)  # type: ignore[union-attr]
        starts, columns, values = (np.asarray(getattr(features, part)) for part in ("indptr", "indices", "data"))
    else:
        shape, matrix = np.shape(features), np.atleast_2d(np.asarray(features))
        at = np.nonzero(matrix)
        starts, columns, values = np.searchsorted(at[0], np.arange(len(matrix) + 1)), at[1], matrix[at]
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"SparseLogistic.data must have a matrix of features, got shape {shape}")
    rows = Rows(starts.astype(np.int64), columns.astype(np.int64), values)
    _check(rows, *shape)
    return rows, int(shape[1])


def signed(rows: Rows, width: int, signs: NDArray[np.float64], dtype: Any) -> Rows:
    """Each row, with a 1 for the bias at its end, times its label: a positive product with x is a right answer."""
    ends = rows.starts[1:]
    columns, values = (
        np.insert(rows.columns, ends, width),
        np.insert(rows.values.astype(dtype), ends, 1),
    )
    starts = rows.starts + np.arange(len(rows.starts))
    # Unsigned, because numba would first see whether a signed index is negative.
    return Rows(starts, columns.astype(np.uint32), values * np.repeat(signs, np.diff(starts)).astype(dtype))


def _check(rows: Rows, height: int, width: int) -> None:
    starts, columns, values = rows
    whole = starts.shape == (height + 1,) and starts[0] == 0 and starts[-1] == len(columns) == len(values)
    if not whole or (np.diff(starts) < 0).any():
        raise ValueError(f"SparseLogistic.data must have an indptr that parts its numbers into {height} rows")
    if len(columns) and not 0 <= columns.min() <= columns.max() < width:
        raise ValueError(f"SparseLogistic.data must have indices from 0 to {width - 1}")
    row = np.repeat(np.arange(height), np.diff(starts))
    if ((np.diff(columns) <= 0) & (np.diff(row) == 0)).any():
        raise ValueError(
            "SparseLogistic.data must have indices that rise within a row\n"
            "  SciPy's sum_duplicates() brings a matrix into this form"
        )
    if not np.isfinite(values).all():
        raise ValueError("SparseLogistic.data must have finite features, got nan or infinity")
