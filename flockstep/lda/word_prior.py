"""How often every word is in every topic before a document is read: eta, one number, given or learned on the way.

Minka's fixed point once more (see priors.py), for W words and topics k with n_wk of word w, N_k in all:

    eta <- eta sum_wk (psi(n_wk + eta) - psi(eta)) / (W sum_k (psi(N_k + W eta) - psi(W eta)))

with the same straight line where a topic is expected to have less than one word. One number for all words: a word that
is rare is rare in all topics, and what a topic says of it is what is to be learned. Some two thousand words stand for
all, from all over the vocabulary.

Topics that are rough have a bit of every word; an eta that followed them at once would keep them so (100 topics of 20
Newsgroups ended at a perplexity of 2,458 instead of 2,332). So it waits for three times as many documents as alpha
does, and follows every so many then.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from flockstep.lda.bound import psi
from flockstep.lda.expectations import compiled
from flockstep.lda.topics import Topics

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
        above = _add(topics.rows, topics.stamps, topics.log_decay, step, eta) / share
        below = words * sum(psi(total + words * eta) - psi(words * eta) for total in totals)
        if below <= 0:
            return eta
        eta = float(np.clip(eta * above / below, _LEAST, _MOST))
    return eta


@compiled
def _add(rows: Any, stamps: Any, log_decay: Any, step: int, eta: float) -> Any:
    """What is above the line, of every so many words."""
    total, psi_eta = 0.0, psi(eta)
    for w in range(0, len(rows), step):
        aged = np.exp(log_decay - stamps[w])
        for k in range(rows.shape[1]):
            expected = aged * rows[w, k]
            total += psi(expected + eta) - psi_eta if expected > 1 else expected / eta
    return total
