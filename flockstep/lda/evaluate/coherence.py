"""How well the top words of a topic go together: UMass and NPMI, from the documents they share.

    UMass   mean over pairs i < j of   log((D(i, j) + smoothing) / D(i))                   word i is the likelier one
    NPMI    mean over pairs of         log(p(i, j) / (p(i) p(j))) / -log p(i, j)           p = D / documents

D counts documents that hold a word, or both words: the whole document is the window, for NPMI too, which other
programs often count in a sliding window of ten words. UMass is at most log((D + smoothing) / D), so close to 0, and
better the higher; NPMI lies between -1 (never together) and 1 (never apart).

UMass is by Mimno et al. 2011, with their smoothing of 1, but as a mean over pairs and not their sum, so that it does
not grow with the number of words. gensim's ``u_mass`` is the same with smoothing = 1e-12 times the number of documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from flockstep import check

Words = NDArray[np.int64]
"""A row per topic: the numbers of its top words, likeliest first."""


@dataclass(frozen=True)
class Together:
    """In how many documents the top words of each topic occur: alone on the diagonal, in pairs beside it."""

    counts: NDArray[np.int64]
    """(topics, words, words)."""
    documents: int


def top_words(components: ArrayLike, count: int = 10) -> Words:
    """The likeliest words of each topic; of equals the first. Fewer where the vocabulary has fewer."""
    weights = np.asarray(components)
    count = min(check.whole("top_words", "count", count), weights.shape[1])
    # Sorting all words of a large vocabulary would take longer than everything else here.
    bars = np.partition(weights, -count, axis=1)[:, -count]
    found = []
    for row, bar in zip(weights, bars, strict=True):
        candidates = np.flatnonzero(row >= bar)
        found.append(candidates[np.argsort(-row[candidates], kind="stable")[:count]])
    return np.array(found, dtype=np.int64)


def together(corpus: Any, words: ArrayLike) -> Together:
    """Count documents with each word and each pair; the corpus is a sparse matrix or an iterable of them (blocks)."""
    top: Words = np.asarray(words, dtype=np.int64)
    if top.ndim != 2:
        raise ValueError(f"together.words must have a row per topic, got {top.ndim} dimensions")
    counts = np.zeros((*top.shape, top.shape[1]), dtype=np.int64)
    wanted, places = np.unique(top, return_inverse=True)
    places = places.reshape(top.shape)
    documents = 0
    for block in _blocks(corpus):
        documents += block.shape[0]
        present = _presence(block, wanted)
        # Topic by topic: the table of all top words against all would be large for many topics.
        for topic, columns in enumerate(places):
            chosen = present[:, columns]
            counts[topic] += (chosen.T @ chosen).toarray()
    return Together(counts, documents)


def umass(corpus: Any, words: ArrayLike, *, smoothing: float = 1.0) -> NDArray[np.float64]:
    """UMass coherence of each topic; pairs whose likelier word is in no document do not count, nan where none does.

    ``corpus`` may be what ``together`` gave for the same words, so that several measures count once.
    """
    check.positive("umass", "smoothing", smoothing)
    seen = _counted(corpus, words)
    first, second = np.triu_indices(seen.counts.shape[1], 1)
    both = seen.counts[:, first, second].astype(np.float64)
    alone = seen.counts[:, first, first].astype(np.float64)
    with np.errstate(divide="ignore"):
        pairs = np.where(alone > 0, np.log((both + smoothing) / alone), np.nan)
    return _mean(pairs)


def npmi(corpus: Any, words: ArrayLike) -> NDArray[np.float64]:
    """NPMI coherence of each topic, by document; -1 for a pair never seen together, 1 for one never seen apart."""
    seen = _counted(corpus, words)
    if not seen.documents:
        raise ValueError("npmi.corpus must hold at least one document")
    first, second = np.triu_indices(seen.counts.shape[1], 1)
    both = seen.counts[:, first, second] / seen.documents
    alone = np.einsum("kii->ki", seen.counts) / seen.documents
    with np.errstate(divide="ignore", invalid="ignore"):
        pairs = np.log(both / (alone[:, first] * alone[:, second])) / -np.log(both)
    # The limits of the formula, where it divides zero by zero.
    pairs = np.where(both == 0, -1.0, np.where(both == 1, 1.0, pairs))
    return _mean(pairs)


def _counted(corpus: Any, words: ArrayLike) -> Together:
    return corpus if isinstance(corpus, Together) else together(corpus, words)


def _blocks(corpus: Any) -> Any:
    if sparse.issparse(corpus) or isinstance(corpus, np.ndarray):
        return [corpus]
    return iter(corpus)


def _presence(block: Any, wanted: Words) -> Any:
    """Which documents hold which of the wanted words: ones and nothing stored elsewhere."""
    rows = sparse.csr_array(block)
    if len(wanted) and wanted[-1] >= rows.shape[1]:
        raise ValueError(f"together.words names word {wanted[-1]}, but the corpus has {rows.shape[1]} words")
    chosen = sparse.csc_array(rows[:, wanted] > 0)
    return chosen.astype(np.int64)


def _mean(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each row over what is a number; nan, without a warning, where nothing is."""
    known = ~np.isnan(pairs)
    with np.errstate(invalid="ignore"):
        mean: NDArray[np.float64] = np.where(known, pairs, 0.0).sum(axis=1) / known.sum(axis=1)
    return mean
