"""What a worker did to its own copy of the topics, as one pair (a, s) to send: lambda <- a lambda + s.

Updates one after another, n <- a_1 n + s_1, n <- a_2 n + s_2, are one with a = a_1 a_2 and s = a_2 s_1 + s_2. Only
words that were touched have a row, so the size is that of the batches and not of the vocabulary. Updates are kept as
they are until the pair is asked for, by whoever sends it: learning does not wait for sums.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from flockstep.lda.core.expectations import compiled
from flockstep.lda.core.instructions import AHEAD, fetch
from flockstep.lda.core.topics import LEAST_LOG, Update

_MOST_KEPT = 2**26
"""Numbers; beyond that, updates are added up at once."""


@dataclass
class Page:
    """Updates one after another, of so many words and topics. Nobody must change their arrays any more."""

    n_words: int
    n_topics: int
    updates: list[Update]

    @property
    def log_decay(self) -> float:
        """What the pair's is."""
        if len(self.updates) == 1:
            return self.updates[0].log_decay
        return sum(max(update.log_decay, LEAST_LOG) for update in self.updates)

    @property
    def numbers(self) -> int:
        """How many are kept."""
        return sum(update.statistics.size for update in self.updates)

    def sum(self) -> Update:
        """The pair."""
        if len(self.updates) == 1:
            return self.updates[0]
        room = min(self.n_words, sum(update.words.size for update in self.updates))
        slots, names = np.full(self.n_words, -1, np.int32), np.empty(room, np.int32)
        rows, totals = np.empty((room, self.n_topics), np.float32), np.zeros(self.n_topics)
        count, log_decay = 0, 0.0
        for update in reversed(self.updates):
            aged = math.exp(log_decay)
            totals += aged * update.totals
            count = _add(slots, names, rows, count, np.float32(aged), update.words, update.statistics)
            log_decay += max(update.log_decay, LEAST_LOG)
        return Update(log_decay=log_decay, words=names[:count], statistics=rows[:count], totals=totals)


class PendingUpdate:
    """Collects updates, and owns their arrays from then on; several threads may record at once."""

    def __init__(self, n_words: int, n_topics: int) -> None:
        self._size = n_words, n_topics
        self._page = Page(*self._size, [])
        self._turn = threading.Lock()

    def record(self, update: Update) -> None:
        """Take an update in."""
        with self._turn:
            updates = self._page.updates
            updates.append(update)
            # The first may be a sum: to add to it again and again would take longer and longer.
            if self._page.numbers > max(_MOST_KEPT, 2 * updates[0].statistics.size):
                updates[:] = [self._page.sum()]

    def put_before(self, earlier: Page) -> None:
        """What is there was first."""
        with self._turn:
            self._page.updates[:0] = earlier.updates

    def take(self) -> Page:
        """All that was recorded since the last time; begins anew."""
        with self._turn:
            page, self._page = self._page, Page(*self._size, [])
        return page

    def sum(self) -> Update:
        """The pair of all that was recorded since the last time it was taken."""
        with self._turn:
            return self._page.sum()


@compiled
def _add(slots: Any, names: Any, rows: Any, count: Any, aged: Any, words: Any, statistics: Any) -> Any:
    """Add statistics to the rows of their words, new ones at the end; how many rows there are."""
    for u in range(words.size):
        if u + AHEAD < words.size and slots[words[u + AHEAD]] >= 0:
            fetch(rows, slots[words[u + AHEAD]])
        slot, more = slots[words[u]], statistics[u]
        if slot < 0:
            slots[words[u]], names[count] = count, words[u]
            row = rows[count]
            count += 1
            for k in range(row.size):
                row[k] = aged * more[k]
        else:
            row = rows[slot]
            for k in range(row.size):
                row[k] += aged * more[k]
    return count
