"""Finding data files, and reading them."""

from __future__ import annotations

import gzip
import math
import os
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_LABEL_PAIRS = ((-1.0, 1.0), (0.0, 1.0), (1.0, 2.0))


def data_folder(name: str) -> Path:
    """The folder of one data set: in FLOCKSTEP_DATA where that is set, else in ``../shared/data``."""
    parent = os.environ.get("FLOCKSTEP_DATA")
    folder = Path(parent or Path("..", "shared", "data")) / name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no data folder {str(folder)!r}: set the environment variable FLOCKSTEP_DATA to the folder"
            f" that has {name!r} in it"
        )
    return folder


def shakespeare() -> str:
    """1.1 million characters of Shakespeare, part of this package."""
    return _shakespeare()


@cache
def _shakespeare() -> str:
    packed = resources.files("flockstep.workloads").joinpath("data", "shakespeare.txt.gz").read_bytes()
    return gzip.decompress(packed).decode("utf8")


def read_words(path: str | Path) -> list[str]:
    """The words of a tokenised text, plain or .gz, with ``<eos>`` at the end of every line."""
    return _read_text(path).replace("\n", " <eos> ").split()


def read_libsvm(path: str | Path, *, features: int | None = None) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Dense features and labels in {-1, +1} of a LIBSVM file, plain or .gz.

    Labels 0/1 and 1/2 become -1/+1. ``features`` widens the matrix where a file lacks the last ones.
    """
    labels: list[float] = []
    columns: list[int] = []
    values: list[float] = []
    ends: list[int] = [0]
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            labels.append(float(words[0]))
            _read_pairs(words[1:], columns, values)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: expected 'label index:value ...' with indices rising from 1, got {line[:60]!r}"
            ) from error
        ends.append(len(columns))
    if not labels:
        raise ValueError(f"{path}: no data in this file")
    width = max(columns, default=-1) + 1
    if features is not None and width > features:
        raise ValueError(f"{path}: has {width} features, but at most {features} were expected")
    matrix = np.zeros((len(labels), features or width), dtype=np.float32)
    matrix[np.repeat(np.arange(len(labels)), np.diff(ends)), columns] = values
    return matrix, _signs(np.array(labels), path)


def _read_pairs(words: list[str], columns: list[int], values: list[float]) -> None:
    last = 0
    for word in words:
        index, value = word.split(":")
        column, number = int(index), float(value)
        if column <= last or not math.isfinite(number):
            raise ValueError(word)
        last = column
        columns.append(column - 1)
        values.append(number)


def _signs(labels: NDArray[np.float64], path: str | Path) -> NDArray[np.float32]:
    found = np.unique(labels)
    for low, high in _LABEL_PAIRS:
        if set(found) <= {low, high}:
            return np.where(labels == high, 1, -1).astype(np.float32)
    raise ValueError(f"{path}: labels must be -1/+1, 0/1 or 1/2, got {', '.join(f'{label:g}' for label in found[:5])}")


def _read_text(path: str | Path) -> str:
    packed = Path(path).read_bytes()
    return (gzip.decompress(packed) if Path(path).suffix == ".gz" else packed).decode("utf8")
