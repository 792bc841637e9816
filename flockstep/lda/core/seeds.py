"""Words that somebody knows a topic by: where learning begins, they are nearly its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.lda.core.topics import Topics

_STRENGTH = 100.0
"""Times the count that every other word begins with."""


def plant(topics: Topics, seeds: Sequence[Sequence[int | str]], names: NDArray[Any] | None = None) -> None:
    """Begin topic k with the words of ``seeds[k]``, and the other topics with next to nothing of them."""
    if len(seeds) > topics.n_topics:
        raise ValueError(f"LDA.seed_words has {len(seeds)} topics, but n_components is {topics.n_topics}")
    places = {} if names is None else {str(name): number for number, name in enumerate(names)}
    owners: dict[int, list[int]] = {}
    for topic, words in enumerate(seeds):
        for word in words if not isinstance(words, str) else [words]:
            owners.setdefault(_column(word, places, topics.n_words), []).append(topic)
    for column, own in owners.items():
        # A word that several were given is shared by them.
        topics.rows[column] *= 1 / _STRENGTH
        topics.rows[column, own] *= _STRENGTH**2
    topics.totals = topics.rows.sum(0, dtype=np.float64)


def _column(word: int | str, places: dict[str, int], n_words: int) -> int:
    if isinstance(word, str):
        if word not in places:
            why = "no document has it" if places else "documents came without names of words; give numbers of columns"
            raise ValueError(f"LDA.seed_words has {word!r}: {why}")
        return places[word]
    if isinstance(word, bool) or not 0 <= word < n_words:
        raise ValueError(f"LDA.seed_words has column {word}, but there are {n_words} words")
    return int(word)
