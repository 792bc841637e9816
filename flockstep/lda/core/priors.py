"""Priors: alpha, what topics a document is about before a word of it is read, and eta, how often a word is in a topic.

Given, or learned on the way.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.lda.core.bound import psi
from flockstep.lda.core.expectations import compiled
from flockstep.lda.core.topics import Topics

Floats = NDArray[np.float32]
MOST = 1e6
"""Of a prior: more would be as good as infinite, and much more does not fit single precision."""
_LEAST, _MOST = 1e-5, 1e3
_WINDOW, _ROUNDS, _FRESH = 2000, 5, 0.25
"""Documents that are looked at, at least; rounds at a time; the share of them that is new by then."""
_FEW, _MOST_SUM = 3.0, 5.0
"""Words of a document that says next to nothing; the most that alpha adds up to there."""
_NEGLIGIBLE = np.float32(1e-3)


class MixturePrior:
    """Alpha; it follows the documents, if it is to."""

    def __init__(self, alpha: NDArray[Any], *, learned: bool) -> None:
        self.alpha: Floats = np.array(alpha, np.float32)
        self.learned = learned
        self.seen = 0
        """Documents so far."""
        self.fresh = 0
        """Those of them that no round was taken over yet."""
        self._latest: deque[tuple[NDArray[np.int64], Floats, Floats]] = deque()
        """Of each batch: topics and their expected counts, document by document, and the documents' lengths."""
        self._turn = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _turn=threading.Lock())

    def as_given(self) -> float | Floats:
        """Alpha, as one number where it was given as one."""
        one = not self.learned and bool((self.alpha == self.alpha[0]).all())
        return float(self.alpha[0]) if one else self.alpha

    def window(self) -> dict[str, NDArray[Any]]:
        """The latest documents as arrays, for a file."""
        topics, counts, lengths = zip(*self._latest, strict=True) if self._latest else ((), (), ())
        return {
            "prior_topics": np.concatenate([np.empty(0, np.int64), *topics]),
            "prior_counts": np.concatenate([np.empty(0, np.float32), *counts]),
            "prior_lengths": np.concatenate([np.empty(0, np.float32), *lengths]),
            "prior_ends": np.cumsum([(len(each), len(some)) for each, some in zip(topics, lengths, strict=True)], 0)
            if topics
            else np.empty((0, 2), np.int64),
        }

    def look_at(self, window: dict[str, NDArray[Any]]) -> None:
        """The latest documents are those of a file; its arrays are taken out of ``window``."""
        topics, counts, lengths, ends = (
            window.pop(f"prior_{name}") for name in ("topics", "counts", "lengths", "ends")
        )
        places = [np.split(each, ends[:-1, which]) for each, which in ((topics, 0), (counts, 0), (lengths, 1))]
        self._latest = deque(zip(*places, strict=True)) if len(ends) else deque()

    def take(self, gamma: Floats, alpha: Floats, *, after: float) -> None:
        """Learn from documents whose ``gamma`` was found under ``alpha``; not before so many were seen."""
        if not self.learned:
            return
        with self._turn:
            self.seen += len(gamma)
            if self.seen <= after:
                return
            self._latest.append(_counts(gamma, alpha))
            self.fresh += len(gamma)
            while len(self._latest) > 1 and self._looked_at() > _WINDOW + len(gamma):
                self._latest.popleft()
            if self.fresh < _FRESH * self._looked_at():
                return
            self.fresh = 0
            found = self.alpha.astype(np.float64)
            for _ in range(_ROUNDS):
                found = self._round(found)
            # A new array: other threads read the old one.
            self.alpha = self._within(found).astype(np.float32)

    def _looked_at(self) -> int:
        return sum(lengths.size for _, _, lengths in self._latest)

    def _within(self, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where documents are short, no topic far below the others; and a sum that their words can stand up to."""
        words = max(1.0, sum(float(lengths.sum()) for _, _, lengths in self._latest) / self._looked_at())
        alpha = np.maximum(alpha, min(0.5, _FEW / words) * alpha.mean())
        least, most = min(1.0, _FEW / words), max(_MOST_SUM, words / 2)
        return np.asarray(alpha * np.clip(alpha.sum(), least, most) / alpha.sum())

    def _round(self, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        above, below = np.zeros(alpha.size), 0.0
        for topics, counts, lengths in self._latest:
            below += _add(topics, counts, lengths, alpha, above)
        return np.clip(alpha * above / below, _LEAST, _MOST) if below > 0 else alpha


def first_prior(asked: Any, topics: int, *, objective: str) -> MixturePrior:
    """What training begins with, for an estimator that was asked for this."""
    if asked is None and objective == "vb":
        # As in scikit-learn, whose numbers these are.
        asked = 1 / topics
    if asked is None or (isinstance(asked, str) and asked == "auto"):
        return MixturePrior(np.full(topics, 1 / topics), learned=True)
    alpha = np.asarray(asked, np.float32)
    if alpha.ndim > 1 or (alpha.ndim == 1 and alpha.size != topics):
        raise ValueError(f"LDA.doc_topic_prior must be one number or {topics}, one for each topic, got {alpha.shape}")
    if not ((alpha > 0) & (alpha <= MOST)).all():
        raise ValueError(f"LDA.doc_topic_prior must be positive, and at most {MOST:.0e}")
    return MixturePrior(np.broadcast_to(alpha, topics), learned=False)


def begins_after(documents: float, planned: float) -> float:
    """After how many documents alpha begins to be learned, of so many in a corpus and so many to be seen."""
    return min(documents, planned / 3)


@compiled
def _counts(gamma: Any, alpha: Any) -> Any:
    """Topics that documents have some of, expected counts of them, and the documents' lengths."""
    some = 0
    for d in range(len(gamma)):
        for k in range(alpha.size):
            some += gamma[d, k] - alpha[k] > _NEGLIGIBLE
    topics, counts = np.empty(some, np.int64), np.empty(some, np.float32)
    lengths = np.zeros(len(gamma), np.float32)
    place = 0
    for d in range(len(gamma)):
        for k in range(alpha.size):
            expected = gamma[d, k] - alpha[k]
            lengths[d] += max(expected, np.float32(0))
            if expected > _NEGLIGIBLE:
                topics[place], counts[place] = k, expected
                place += 1
    return topics, counts, lengths


@compiled
def _add(topics: Any, counts: Any, lengths: Any, alpha: Any, above: Any) -> Any:
    """Add up what is above the line of the fixed point; what is below it."""
    psi_alpha, whole = np.empty(alpha.size), 0.0
    for k in range(alpha.size):
        psi_alpha[k] = psi(alpha[k])
        whole += alpha[k]
    for i in range(topics.size):
        k, expected = topics[i], float(counts[i])
        above[k] += psi(expected + alpha[k]) - psi_alpha[k] if expected > 1 else expected / alpha[k]
    below, psi_whole = 0.0, psi(whole)
    for d in range(lengths.size):
        below += psi(lengths[d] + whole) - psi_whole
    return below


_LEAST, _MOST = 1e-4, 1e2
_LOOKED_AT, _ROUNDS, _PATIENCE = 2000, 5, 3


class WordPrior:
    """Eta; it follows the topics, if it is to."""

    def __init__(self, first: float, *, learned: bool) -> None:
        self.first, self.learned = float(first), learned
        self.seen = 0.0
        """Documents so far."""
        self._turn = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _turn=threading.Lock())

    def take(self, topics: Topics, documents: int, *, every: float) -> None:
        """So many documents more are in the topics, whose prior follows ``every`` so many, but for the first ones."""
        if not self.learned:
            return
        with self._turn:
            before, self.seen = self.seen, self.seen + documents
            if int(self.seen / every) >= max(_PATIENCE, int(before / every) + 1):
                topics.change_prior(found(topics))


def first_word_prior(asked: float | str | None, topics: int) -> WordPrior:
    """What training begins with, for an estimator that was asked for this."""
    learned = asked == "auto"
    return WordPrior(1 / topics if asked is None or learned else float(asked), learned=learned)


def found(topics: Topics) -> float:
    """The eta that fits these topics, a few rounds from the one they have."""
    step = max(1, topics.n_words // _LOOKED_AT)
    eta, words, totals = topics.prior, topics.n_words, topics.totals
    share = len(range(0, words, step)) / words
    for _ in range(_ROUNDS):
        above = _add_word_bound(topics.rows, topics.stamps, topics.log_decay, step, eta) / share
        below = words * sum(psi(total + words * eta) - psi(words * eta) for total in totals)
        if below <= 0:
            return eta
        eta = float(np.clip(eta * above / below, _LEAST, _MOST))
    return eta


@compiled
def _add_word_bound(rows: Any, stamps: Any, log_decay: Any, step: int, eta: float) -> Any:
    """What is above the line, of every so many words."""
    total, psi_eta = 0.0, psi(eta)
    for w in range(0, len(rows), step):
        aged = np.exp(log_decay - stamps[w])
        for k in range(rows.shape[1]):
            expected = aged * rows[w, k]
            total += psi(expected + eta) - psi_eta if expected > 1 else expected / eta
    return total
