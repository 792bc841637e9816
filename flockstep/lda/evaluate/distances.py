"""How far topics are from each other, and a map of them: Jensen-Shannon distance and classical scaling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Logarithms to take at most: some ten seconds. Beyond it the rarest words are told apart no longer.
_LOGARITHMS = 2e9
# Numbers in a piece of the work: enough for the arithmetic to count, and they stay in the cache.
_PIECE = 2**17
_LEAST = np.finfo(np.float64).tiny


def distances(components: ArrayLike, *, effort: float = _LOGARITHMS) -> NDArray[np.float64]:
    """The Jensen-Shannon distance (root of the divergence in bits, 0 to 1) between topics, each row in any scale.

    Where comparing every word would take more than ``effort`` logarithms, only the words that are likeliest somewhere
    are told apart and all others count as one: the distances are then too small, the more so the fewer are left.
    """
    rows = np.asarray(components)
    count, words = rows.shape
    scale = 1.0 / rows.sum(axis=1, dtype=np.float64, keepdims=True)
    kept = int(2 * effort / max(1, count * (count - 1)))
    divergences = np.zeros((count, count))
    for piece in _pieces(rows, scale, words if words <= kept else max(1, kept)):
        own = _entropies(piece)
        for k in range(count - 1):
            divergences[k, k + 1 :] += _entropies((piece[k] + piece[k + 1 :]) / 2) - (own[k] + own[k + 1 :]) / 2
    # Rounding leaves equal topics a hair below zero.
    root: NDArray[np.float64] = np.sqrt(np.clip(divergences + divergences.T, 0.0, 1.0))
    return root


def plane(apart: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points in the plane whose distances are close to these: classical multidimensional scaling."""
    count = len(apart)
    squares = apart**2
    centred = -(squares - squares.mean(axis=0) - squares.mean(axis=1, keepdims=True) + squares.mean()) / 2
    values, vectors = np.linalg.eigh(centred)
    points = np.zeros((count, 2))
    for axis, column in enumerate(range(count - 1, max(-1, count - 3), -1)):
        direction = vectors[:, column] * np.sqrt(max(values[column], 0.0))
        # An eigenvector has no sign of its own: the same model is to give the same map.
        points[:, axis] = direction if direction[np.abs(direction).argmax()] >= 0 else -direction
    return points


def _pieces(rows: NDArray[Any], scale: NDArray[np.float64], kept: int) -> Iterator[NDArray[np.float64]]:
    """Probabilities of some words at a time, and in the end of all that are not kept together."""
    count, words = rows.shape
    columns: NDArray[np.int64] = np.arange(words)
    if kept < words:
        likeliest = np.zeros(words)
        for row, factor in zip(rows, scale, strict=True):
            np.maximum(likeliest, row * factor, out=likeliest)
        columns = np.argpartition(-likeliest, kept - 1)[:kept]
    width = max(1, _PIECE // count)
    seen = np.zeros((count, 1))
    for start in range(0, kept, width):
        piece = rows[:, columns[start : start + width]] * scale
        seen += piece.sum(axis=1, keepdims=True)
        yield piece
    if kept < words:
        yield np.clip(1.0 - seen, 0.0, None)


def _entropies(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """What these words add to each row's entropy, in bits; 0 log 0 is 0."""
    # Not below the least number there is: a mask would cost more than the logarithms.
    entropies: NDArray[np.float64] = -np.einsum("kw,kw->k", rows, np.log2(np.maximum(rows, _LEAST)))
    return entropies
