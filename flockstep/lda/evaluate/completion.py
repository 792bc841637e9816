"""Document completion: how well topics foresee one half of a document from the other.

Every token of a held-out document goes to one half or the other by a coin. The document's mixture is fitted to the
first half by expectation maximisation,

    phi_wk ~ theta_k beta_kw,     theta_k ~ alpha + sum_w n_w phi_wk,

and the perplexity is that of the second half under theta beta. Only distributions over words are needed, so models of
any origin are measured alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from flockstep.lda.core.documents import infer
from flockstep.lda.core.expectations import compiled
from flockstep.lda.core.topics import Floats, Topics, Words
from flockstep.lda.data.corpora import Corpus

_ROUNDS, _TOLERANCE = 100, 1e-3
# A model that gives a word no chance at all would have an infinite perplexity, which tells nothing.
_LEAST = 1e-12

Rows = Callable[[Words], Floats]
"""The probabilities of these words in all topics, a row per word."""


class Completion:
    """Held-out documents, split once for all models that are measured on them."""

    def __init__(self, documents: Any, *, alpha: float = 0.1, seed: int = 0) -> None:
        matrix = sp.csr_array(documents)
        self.alpha, self.n_words = float(alpha), int(matrix.shape[1])
        rng = np.random.default_rng(seed)
        whole = bool((matrix.data == np.floor(matrix.data)).all())
        # Counts that are no counts cannot be thinned: the whole entry goes to one half.
        seen = (
            rng.binomial(matrix.data.astype(np.int64), 0.5) if whole else matrix.data * rng.integers(2, size=matrix.nnz)
        )
        self._seen, self._hidden = _with(matrix, seen), _with(matrix, matrix.data - seen)
        self.tokens = float(self._hidden.counts.sum(dtype=np.float64))
        if not self.tokens:
            raise ValueError("Completion.documents must have words to foresee, got none")
        self._words = np.unique(np.concatenate([self._seen.words, self._hidden.words]))

    def perplexity(self, rows: Rows, alpha: ArrayLike | None = None) -> float:
        """exp(-mean log-probability of the hidden tokens), lower is better; ``alpha``: of the model itself."""
        slots = np.full(self.n_words, -1, np.int32)
        slots[self._words] = np.arange(self._words.size)
        block = np.maximum(rows(self._words), np.float32(_LEAST)).astype(np.float32)
        topics = block.shape[1]
        theta = np.ones((len(self._seen), topics), np.float32)
        one, seen = np.ones(topics, np.float32), self._seen
        infer(
            seen.starts,
            seen.words,
            seen.counts,
            np.arange(len(seen)),
            slots,
            block,
            one,
            np.array(np.broadcast_to(np.asarray(self.alpha if alpha is None else alpha, np.float32), topics)),
            False,
            False,
            _ROUNDS,
            _ROUNDS,
            np.float32(_TOLERANCE),
            np.float32(-1),
            theta,
            np.arange(len(seen)),
            False,
            block[:0],
            False,
            np.uint64(0),
        )
        theta /= theta.sum(1, keepdims=True)
        hidden = self._hidden
        return math.exp(-_log_likelihood(hidden.starts, hidden.words, hidden.counts, slots, block, theta) / self.tokens)

    def of_components(self, components: ArrayLike, alpha: ArrayLike | None = None) -> float:
        """The perplexity of topics by words, each row divided by its sum."""
        table = np.asarray(components)
        if table.ndim != 2 or table.shape[1] != self.n_words:
            raise ValueError(f"components must have {self.n_words} columns, one per word, got shape {table.shape}")
        total = table.sum(1, dtype=np.float64)
        return self.perplexity(
            lambda words: np.ascontiguousarray((table[:, words] / total[:, None]).T, np.float32), alpha
        )

    def of_topics(self, topics: Topics, alpha: ArrayLike | None = None) -> float:
        """The perplexity of topics in training, without building their table."""
        total = (topics.totals + topics.prior * topics.n_words).astype(np.float32)
        return self.perplexity(lambda words: (topics.counts(words) + np.float32(topics.prior)) / total, alpha)


def _with(matrix: Any, counts: NDArray[Any]) -> Corpus:
    part = sp.csr_array((counts.astype(np.float32), matrix.indices, matrix.indptr), shape=matrix.shape, copy=True)
    part.eliminate_zeros()
    return Corpus.of(part)


@compiled
def _log_likelihood(starts: Any, words: Any, counts: Any, slots: Any, block: Any, theta: Any) -> Any:
    score = 0.0
    for d in range(len(theta)):
        for j in range(starts[d], starts[d + 1]):
            row, likely = block[slots[words[j]]], np.float32(0)
            for k in range(row.size):
                likely += theta[d, k] * row[k]
            score += counts[j] * np.log(likely)
    return score
