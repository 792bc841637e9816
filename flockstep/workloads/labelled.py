"""Rows with labels of -1 or +1, as logistic regression takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flockstep.workloads.datasets import data_folder


def libsvm_file(owner: str, data: str | Path) -> Path:
    """The file of that path, or else of that name in the data folder ``libsvm``."""
    path = Path(data)
    named = path if path.is_file() else data_folder("libsvm") / f"{data}.gz"
    if not named.is_file():
        raise FileNotFoundError(f"{owner}.data: there is neither a file {str(data)!r} nor {str(named)!r}")
    return named


def signed_rows(features: ArrayLike, labels: ArrayLike, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The labels; and each row, with a 1 for the bias at its end, times its label."""
    matrix = np.asarray(features, dtype=dtype)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"Logistic.data must have a matrix of features, got shape {matrix.shape}")
    signs = signs_of("Logistic", labels, len(matrix)).astype(dtype)
    if not np.isfinite(matrix).all():
        raise ValueError("Logistic.data must have finite features, got nan or infinity")
    return signs, np.column_stack([matrix, np.ones(len(matrix), dtype)]) * signs[:, None]


def signs_of(owner: str, labels: ArrayLike, height: int) -> NDArray[np.float64]:
    """One label for each row, -1 or +1."""
    signs = np.asarray(labels, dtype=np.float64)
    if signs.shape != (height,):
        raise ValueError(f"{owner}.data must have one label for each of the {height} rows, got shape {signs.shape}")
    strange = signs[np.abs(signs) != 1]
    if strange.size:
        raise ValueError(f"{owner}.data must have labels -1 or +1, got {strange[0]:g}")
    return signs
