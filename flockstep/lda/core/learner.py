"""One thread's part of the work: from a batch of documents to the pair (decay, statistics) that topics fold in."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.lda.core.documents import infer
from flockstep.lda.core.draws import are_drawn
from flockstep.lda.core.expectations import compiled
from flockstep.lda.core.priors import MixturePrior
from flockstep.lda.core.topics import Floats, Topics, Update, Words


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When a document's topics are known well enough."""

    alpha: float | Floats
    """Of every topic, or of each."""
    full_rounds: int = 4
    """Rounds over all topics before those with next to none of the document are dropped."""
    rounds: int = 100
    tolerance: float = 1e-2
    """Stop when the mean change over topics is below."""
    negligible: float = 1e-2
    """A topic with fewer expected words of the document than this is dropped."""
    prior_after: float = 0.0
    """How many documents are seen before alpha is learned from them, where it is."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some documents of a corpus in compressed rows, and where to begin with each."""

    starts: NDArray[np.int64]
    words: Words
    counts: Floats
    chosen: NDArray[np.int64]
    seed: int = 0
    """Of the noise that documents begin with, where nobody remembers them."""
    length: float = math.inf
    """Words of the corpus's documents, on average."""
    memory: Floats | None = None
    """A row per document of the corpus: where inference begins, and where it ended."""


class Learner:
    """Scratch memory of one thread, as large as its largest batch needs; never words by topics."""

    def __init__(self, topics: Topics, rules: Rules, prior: MixturePrior | None = None) -> None:
        """``prior`` is learned from what is learned from; without, ``rules.alpha`` stays."""
        self._topics, self._rules = topics, rules
        fixed = np.broadcast_to(np.float32(rules.alpha), topics.n_topics)
        self._prior = MixturePrior(fixed, learned=False) if prior is None else prior
        self._slots = np.full(topics.n_words, -1, np.int32)
        self._block = np.empty((0, topics.n_topics), np.float32)
        self._statistics = np.empty((0, topics.n_topics), np.float32)
        self._spare: list[Floats] = []
        self._gamma = np.empty((0, topics.n_topics), np.float32)

    def infer(self, batch: Batch) -> None:
        """Fit ``batch.memory`` to the topics as they are."""
        self._run(batch, self._prior.alpha, learn=False)

    def learn(self, batch: Batch, *, rate: float, of: float, documents: float | None = None) -> Update:
        """The update of one batch that stands for ``of`` documents; its arrays are lent until the next call.

        ``documents``: of the corpus, where a batch stands for a part of it.
        """
        alpha = self._prior.alpha
        drawn = self._topics.collapsed and are_drawn(
            batch.length, documents=of if documents is None else documents, vocabulary=self._topics.n_words
        )
        words, block, statistics = self._run(batch, alpha, learn=True, drawn=drawn)
        if batch.memory is None:
            self._prior.take(self._gamma[: batch.chosen.size], alpha, after=self._rules.prior_after)
        totals = np.zeros(self._topics.n_topics)
        _complete(block, statistics, np.float32(rate * of / batch.chosen.size), totals)
        log_decay = math.log1p(-rate) if rate < 1 else -math.inf
        return Update(log_decay=log_decay, words=words, statistics=statistics, totals=totals)

    def let_go(self, update: Update) -> None:
        """What was lent is somebody else's, until nobody has this update any more."""
        weakref.finalize(update, self._spare.append, self._statistics).atexit = False
        self._statistics = self._spare.pop() if self._spare else np.empty((0, self._topics.n_topics), np.float32)

    def _run(self, batch: Batch, alpha: Floats, *, learn: bool, drawn: bool = False) -> tuple[Words, Floats, Floats]:
        words = _number(batch.starts, batch.words, batch.chosen, self._slots)
        self._block = _roomy(self._block, len(words))
        block, factor, rules = self._block[: len(words)], self._topics.factor(), self._rules
        if learn:
            self._statistics = _roomy(self._statistics, len(words))
            self._statistics[: len(words)] = 0
        statistics = self._statistics[: len(words)]
        self._topics.gather(words, block)
        gamma, places = self._beginnings(batch)
        infer(
            batch.starts,
            batch.words,
            batch.counts,
            batch.chosen,
            self._slots,
            block,
            factor,
            alpha,
            self._topics.vb,
            self._topics.collapsed,
            rules.full_rounds,
            rules.rounds,
            np.float32(rules.tolerance),
            np.float32(rules.negligible),
            gamma,
            places,
            learn,
            statistics,
            drawn,
            np.uint64(batch.seed),
        )
        self._slots[words] = -1
        return words, block, statistics

    def _beginnings(self, batch: Batch) -> tuple[Floats, NDArray[np.int64]]:
        """Gamma, and the row of it for each chosen document."""
        if batch.memory is not None:
            return batch.memory, batch.chosen
        self._gamma = _roomy(self._gamma, batch.chosen.size)
        first_gamma(self._gamma[: batch.chosen.size], batch.seed)
        return self._gamma, np.arange(batch.chosen.size)


def first_gamma(out: Floats, seed: int) -> None:
    """Gamma(100, 1/100): about even, with noise."""
    np.random.Generator(np.random.SFC64(seed)).standard_gamma(100.0, dtype=np.float32, out=out)
    out *= np.float32(0.01)


def _roomy(scratch: Floats, rows: int) -> Floats:
    return scratch if len(scratch) >= rows else np.empty((rows + rows // 4, scratch.shape[1]), np.float32)


@compiled
def _number(starts: Any, words: Any, chosen: Any, slots: Any) -> Any:
    """Number the words of the chosen documents in ``slots``, in the order they are met; which they are."""
    most = 0
    for d in range(chosen.size):
        most += starts[chosen[d] + 1] - starts[chosen[d]]
    found = np.empty(min(most, slots.size), np.int32)
    count = 0
    for d in range(chosen.size):
        for j in range(starts[chosen[d]], starts[chosen[d] + 1]):
            if slots[words[j]] < 0:
                slots[words[j]] = count
                found[count] = words[j]
                count += 1
    return found[:count].copy()


@compiled
def _complete(block: Any, statistics: Any, scale: Any, totals: Any) -> None:
    """The factor that all documents share; sums over words."""
    part = np.empty(totals.size, np.float32)
    for first in range(0, len(block), 64):
        part[:] = 0
        for u in range(first, min(first + 64, len(block))):
            for k in range(totals.size):
                statistics[u, k] *= scale * block[u, k]
                part[k] += statistics[u, k]
        for k in range(totals.size):
            totals[k] += part[k]
