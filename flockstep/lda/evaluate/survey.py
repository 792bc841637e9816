"""What a corpus says of a model's topics: how much of it each covers, and which documents are most typical of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from flockstep import check

_GROUPS = 60


@dataclass(frozen=True)
class Groups:
    """Topics by what a column says of documents: a year, a source, a label."""

    by: str
    names: list[str]
    shares: NDArray[np.float64]
    """(groups, topics): each topic's share of all tokens of the documents of a group."""


@dataclass(frozen=True)
class Survey:
    """One pass over a corpus."""

    sizes: NDArray[np.float64]
    """Each topic's share of all tokens: of each document, as much as the topic has of it. They sum to 1."""
    frequencies: NDArray[np.float64]
    """Each word's share of all tokens."""
    typical: NDArray[np.int64]
    """(topics, some): the documents with most of each topic, best first, by number."""
    shares: NDArray[np.float64]
    """(topics, some): how much of those documents the topic has."""
    documents: int
    tokens: float
    groups: Groups | None = None


def survey(model: Any, corpus: Any, *, typical: int = 5, by: str = "", labels: Sequence[str] | None = None) -> Survey:
    """Transform a corpus, a sparse matrix or an iterable of them (blocks), and keep what is worth telling.

    ``labels``: what a column, ``by`` name, says of each document; of many values the 60 most frequent are told, days
    and months taken together as far as that takes.
    """
    grouped = None if labels is None else _Grouped(by, labels, model.n_components)
    best = _Best(model.n_components, check.whole("survey", "typical", typical))
    topics = np.zeros(model.n_components)
    words = np.zeros(model.n_features_in_)
    documents = 0
    for block in _blocks(corpus):
        mixtures = np.asarray(model.transform(block), dtype=np.float64)
        lengths = np.asarray(block.sum(axis=1), dtype=np.float64).ravel()
        topics += lengths @ mixtures
        if grouped is not None:
            grouped.add(lengths[:, None] * mixtures, documents)
        words += np.asarray(block.sum(axis=0), dtype=np.float64).ravel()
        # An empty document is an even mixture and typical of nothing.
        best.add(np.where(lengths[:, None] > 0, mixtures, -1.0), documents)
        documents += block.shape[0]
    tokens = float(words.sum())
    if not tokens:
        raise ValueError("survey.corpus must hold at least one word of the vocabulary")
    groups = None if grouped is None else grouped.largest_groups()
    return Survey(topics / topics.sum(), words / tokens, best.documents, best.shares, documents, tokens, groups)


class _Grouped:
    """Topics' tokens by label."""

    def __init__(self, by: str, labels: Sequence[str], topics: int) -> None:
        self._by = by
        self._labels = _few(labels)
        kept = [name for name, _ in Counter(label for label in self._labels if label).most_common(_GROUPS)]
        self._names = sorted(kept, key=_order)
        self._places = {name: place for place, name in enumerate(self._names)}
        self._sums = np.zeros((len(kept), topics))

    def add(self, tokens: NDArray[np.float64], first: int) -> None:
        for row, label in zip(tokens, self._labels[first : first + len(tokens)], strict=True):
            if label in self._places:
                self._sums[self._places[label]] += row

    def largest_groups(self) -> Groups | None:
        """Nothing where documents do not differ."""
        sums = np.maximum(self._sums.sum(1, keepdims=True), 1e-300)
        return Groups(self._by, self._names, self._sums / sums) if len(self._names) > 1 else None


def _few(labels: Sequence[str]) -> Sequence[str]:
    """Dates as days, months or years, whatever makes them few enough; other labels as they are."""
    if all(re.match(r"\d{4}-\d\d", label) for label in labels if label):
        for length in (10, 7, 4):
            cut = [label[:length] for label in labels]
            if len(set(cut)) <= _GROUPS:
                return cut
    return labels


def _order(name: str) -> tuple[int, float, str]:
    """Numbers by size, before words in their order."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


class _Best:
    """The largest few of each column, over blocks of rows; of equals the first."""

    def __init__(self, columns: int, count: int) -> None:
        self._count = count
        self.documents = np.zeros((columns, 0), dtype=np.int64)
        self.shares = np.zeros((columns, 0))

    def add(self, block: NDArray[np.float64], first: int) -> None:
        numbers = np.broadcast_to(np.arange(first, first + len(block)), block.T.shape)
        documents = np.concatenate([self.documents, numbers], axis=1)
        shares = np.concatenate([self.shares, block.T], axis=1)
        order = np.argsort(-shares, axis=1, kind="stable")[:, : self._count]
        self.documents = np.take_along_axis(documents, order, axis=1)
        self.shares = np.take_along_axis(shares, order, axis=1)


def _blocks(corpus: Any) -> Any:
    # One block of a large corpus in memory is fine, its dense mixtures all at once are not.
    rows = 4096
    if isinstance(corpus, np.ndarray):
        corpus = sparse.csr_array(corpus)
    if sparse.issparse(corpus):
        matrix = corpus.tocsr()
        return (matrix[start : start + rows] for start in range(0, matrix.shape[0], rows))
    return iter(corpus)
