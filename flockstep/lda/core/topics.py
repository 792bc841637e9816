"""The topics as one table of pseudo-counts that decays without being touched.

    lambda_wk = prior + n_wk,     n <- a n + s       with s in the rows of few words, a below one for all

A row is stamped with the running log-product of all a up to its last write; what came since is applied when the row is
next read or written. Totals over words have the same recursion on their own. A batch of stochastic variational
inference is a = 1 - rho and s = rho (D / |S|) times its statistics; what a remote worker sends is the same pair, so
pseudo-counts stay positive however late it comes.

Several threads may read and write the table at once, with no lock on rows: a row is then of mixed age, and of two
stores at the same moment one may be lost. The running product and the totals are few numbers and are kept exact.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.lda.core.expectations import compiled, exp_psi, weights
from flockstep.lda.core.instructions import AHEAD, fetch

Floats = NDArray[np.float32]
Words = NDArray[np.int32]
LEAST_LOG = -100.0
"""Of a decay: beyond it nothing is left."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """n <- exp(log_decay) n + statistics, in the rows of ``words``; ``totals`` are the sums of statistics."""

    log_decay: float
    words: Words
    statistics: Floats
    totals: NDArray[np.float64]


class Topics:
    """Pseudo-counts of ``n_words`` words in ``n_topics`` topics, by word."""

    def __init__(
        self, rows: Floats, *, prior: float, objective: str = "vb", totals: NDArray[np.float64] | None = None
    ) -> None:
        """``rows`` without the prior, words by topics; taken over, not copied. ``totals``: their sums, where known."""
        self.rows = rows
        self.prior = float(prior)
        self.objective = objective
        self.stamps: NDArray[np.float64] = np.zeros(len(rows))
        self.log_decay = 0.0
        self.folds = 0
        """How many updates there were so far."""
        self.totals: NDArray[np.float64] = _sums(rows) if totals is None else totals
        self._turn = threading.Lock()
        self._table: tuple[int, Floats] | None = None

    @classmethod
    def noisy(cls, n_words: int, n_topics: int, *, prior: float, objective: str, rng: np.random.Generator) -> Topics:
        """Nothing learned yet: every count is Gamma(100, 1/100), to tell topics apart."""
        rows = np.empty((n_words, n_topics), np.float32)
        for first in range(0, n_words, step := max(1, 2**20 // n_topics)):
            part = rows[first : first + step]
            rng.standard_gamma(100.0, dtype=np.float32, out=part)
            part *= np.float32(0.01)
        return cls(rows, prior=prior, objective=objective)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_turn", "_table")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _turn=threading.Lock(), _table=None)

    @property
    def vb(self) -> bool:
        """Whether weights are exp(psi(.)) and not the pseudo-counts themselves."""
        return self.objective == "vb"

    @property
    def collapsed(self) -> bool:
        """Whether a word's own share is left out when its topics are judged."""
        return self.objective == "cvb0"

    @property
    def n_words(self) -> int:
        """How many words there are."""
        return int(self.rows.shape[0])

    @property
    def n_topics(self) -> int:
        """How many topics there are."""
        return int(self.rows.shape[1])

    def factor(self) -> Floats:
        """What belongs to a topic and not to a word: exp(-psi(total)), or 1 / total."""
        total = (self.totals + self.prior * self.n_words).astype(np.float32)
        out = np.empty_like(total)
        weights(total, np.ones_like(total), self.vb, out)
        return np.float32(1) / out

    def gather(self, words: Words, out: Floats) -> None:
        """The weights of these words in all topics, as of now: exp(psi(lambda)), or lambda."""
        _gather(self.rows, self.stamps, self.log_decay, np.float32(self.prior), words, self.vb, out)

    def change_prior(self, prior: float) -> None:
        """Lambda has another prior from now on; n stays."""
        self.prior, self._table = float(prior), None

    def fold(self, update: Update) -> None:
        """n <- exp(log_decay) n + statistics."""
        step = max(update.log_decay, LEAST_LOG)
        with self._turn:
            self._be_writable()
            self.folds += 1
            self.log_decay += step
            now = self.log_decay
            self.totals = math.exp(step) * self.totals + update.totals
        _fold(self.rows, self.stamps, now, update.words, update.statistics)

    def counts(self, words: Words) -> Floats:
        """n of these words as of now, prior left out."""
        aged = np.exp(self.log_decay - self.stamps[words]).astype(np.float32)
        return np.asarray(self.rows[words] * aged[:, None])

    def settle(self) -> Floats:
        """Apply all decay that is due to every row, in place; n as a whole, prior left out."""
        self._be_writable()
        _settle(self.rows, self.stamps, self.log_decay)
        return self.rows

    def _be_writable(self) -> None:
        """A table that was loaded by memory map for reading alone is copied when it is first to change."""
        if not (self.rows.flags.writeable and self.stamps.flags.writeable):
            self.rows, self.stamps = self.rows.copy(), self.stamps.copy()

    def table(self) -> Floats:
        """lambda: pseudo-counts of words by topics, prior included. The same array until something is folded in."""
        if self._table is None or self._table[0] != self.folds:
            self._table = self.folds, self.settle() + np.float32(self.prior)
        return self._table[1]


def _sums(rows: Floats) -> NDArray[np.float64]:
    total = np.zeros(rows.shape[1])
    for first in range(0, len(rows), step := max(1, 2**20 // rows.shape[1])):
        total += rows[first : first + step].sum(0, dtype=np.float64)
    return total


@compiled
def _gather(rows: Any, stamps: Any, log_decay: Any, prior: Any, words: Any, vb: bool, out: Any) -> None:
    for u in range(words.size):
        if u + AHEAD < words.size:
            fetch(rows, words[u + AHEAD])
        row, aged = rows[words[u]], np.float32(np.exp(log_decay - stamps[words[u]]))
        into = out[u]
        if vb:
            for k in range(row.size):
                into[k] = exp_psi(prior + aged * row[k])
        else:
            for k in range(row.size):
                into[k] = prior + aged * row[k]


@compiled
def _fold(rows: Any, stamps: Any, now: Any, words: Any, statistics: Any) -> None:
    for u in range(words.size):
        if u + AHEAD < words.size:
            fetch(rows, words[u + AHEAD])
        row, more, stamp = rows[words[u]], statistics[u], stamps[words[u]]
        if now <= stamp:
            aged = np.float32(np.exp(now - stamp))
            stamps[words[u]] = now
            for k in range(row.size):
                row[k] = aged * row[k] + more[k]
        else:
            # Another thread whose turn came later was here first: what it wrote is older by what came between.
            aged = np.float32(np.exp(stamp - now))
            for k in range(row.size):
                row[k] += aged * more[k]


@compiled
def _settle(rows: Any, stamps: Any, now: Any) -> None:
    for w in range(len(rows)):
        aged, row = np.float32(np.exp(now - stamps[w])), rows[w]
        stamps[w] = now
        for k in range(row.size):
            row[k] *= aged
