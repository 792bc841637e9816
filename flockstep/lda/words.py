"""The words of a fitted model, and how likely each is in a topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from flockstep.lda.evaluate import coherence


def words_of(model: Any, vocabulary: Iterable[str] | None = None) -> list[str]:
    """The word of every column: those given, else those the model was fitted with, else ``word 0``, ``word 1``, ..."""
    columns = int(model.n_features_in_)
    if vocabulary is None:
        named = getattr(model, "feature_names_in_", None)
        return [f"word {column}" for column in range(columns)] if named is None else [str(word) for word in named]
    if isinstance(vocabulary, str):
        raise TypeError(f"the vocabulary must be a list of words, got the string {vocabulary!r}")
    words = [str(word) for word in vocabulary]
    if len(words) != columns:
        raise ValueError(f"the vocabulary has {len(words)} words, but the model was fitted with {columns}")
    return words


def top_of(model: Any, words: list[str], count: int) -> list[list[tuple[str, float]]]:
    """The likeliest words of every topic, each with its probability."""
    components = model.components_
    totals = components.sum(axis=1, dtype=np.float64)
    return [
        [(words[column], float(row[column] / total)) for column in top]
        for row, total, top in zip(components, totals, coherence.top_words(components, count), strict=True)
    ]
