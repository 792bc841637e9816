"""What a worker did to its own copy of the topics, as one pair (a, s) to send: lambda <- a lambda + s.

Updates one after another, n <- a_1 n + s_1, n <- a_2 n + s_2, are one with a = a_1 a_2 and s = a_2 s_1 + s_2. Only
words that were touched have a row, so the size is that of the batches and not of the vocabulary.
"""

from __future__ import annotations

import threading

import numpy as np

from flockstep.lda.topics import Floats, Topics, Update, Words


class Journal:
    """Collects updates; several threads may record at once."""

    def __init__(self, n_words: int, n_topics: int) -> None:
        self._slots = np.full(n_words, -1, np.int32)
        self._words: Words = np.empty(0, np.int32)
        self._rows: Floats = np.empty((0, n_topics), np.float32)
        self._turn = threading.Lock()
        self._sums = self._fresh()

    def record(self, update: Update) -> None:
        """Take an update in."""
        with self._turn:
            self._make_room(update.words)
            places = self._slots[update.words]
            self._sums.fold(
                Update(log_decay=update.log_decay, words=places, statistics=update.statistics, totals=update.totals)
            )

    def take(self) -> Update:
        """All that was recorded since the last time, as one update of its own; begins anew."""
        with self._turn:
            sums, words = self._sums, self._words
            self._slots[words] = -1
            # The rows go with the update: zeros that nobody has touched yet cost less than a copy.
            self._words, self._rows = words[:0], np.zeros(self._rows.shape, np.float32)
            self._sums = self._fresh()
        sums.rows, sums.stamps = sums.rows[: words.size], sums.stamps[: words.size]
        return Update(log_decay=sums.log_decay, words=words, statistics=sums.settle(), totals=sums.totals)

    def _fresh(self) -> Topics:
        return Topics(self._rows, prior=0.0, totals=np.zeros(self._rows.shape[1]))

    def _make_room(self, words: Words) -> None:
        new = words[self._slots[words] < 0]
        count = self._words.size + new.size
        self._slots[new] = np.arange(self._words.size, count)
        self._words = np.concatenate([self._words, new])
        if count > len(self._rows):
            rows = np.zeros((count + count // 2, self._rows.shape[1]), np.float32)
            rows[: len(self._rows)] = self._rows
            stamps = np.zeros(len(rows))
            stamps[: len(self._rows)] = self._sums.stamps
            self._rows = self._sums.rows = rows
            self._sums.stamps = stamps
