"""What the leader of a view does: begin rounds that all wait in, commit those that all have the result of."""

from __future__ import annotations

from dataclasses import dataclass

from flockstep.backends.real.rounds.council.own_rounds import remember
from flockstep.backends.real.rounds.council.words import Attempt, Commit, Key, Open, Status, View, Word

Words = list[tuple[int, Word]]
"""What is to be said, and to whom."""


@dataclass(frozen=True)
class _Begun:
    attempt: Attempt
    ranks: tuple[int, ...]


class RoundLeader:
    """Of one view. It is told what members say, and answers what they are to be told."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.said: dict[int, Status] = {}
        self._begun: dict[Key, _Begun] = {}
        self._committed: dict[Key, Attempt] = {}
        self._number = 0

    def advance(self, sender: int) -> Words:
        """Go on after a member's word, and tell it again what it may have missed."""
        keys = {key: None for status in self.said.values() for key in status.open}
        return [words for key in keys for words in self._advance(key, sender)]

    def begin_again(self) -> Words:
        """Begin anew what has failed."""
        failed = {attempt for status in self.said.values() for attempt in status.failed}
        words: Words = []
        for key in [key for key, begun in self._begun.items() if begun.attempt in failed]:
            del self._begun[key]
            words += self._begin(key)
        return words

    def _advance(self, key: Key, sender: int) -> Words:
        begun, open = self._begun.get(key), self.said[sender].open
        if key in self._committed:
            return [(sender, Commit(key, self._committed[key]))] if key in open else []
        if begun is None:
            return self._begin(key)
        if any(begun.attempt in status.failed for status in self.said.values()):
            return []
        if all(self._has_result(rank, key, begun.attempt) for rank in begun.ranks):
            return self._commit(key, begun)
        if sender in begun.ranks and key in open and open[key] != begun.attempt:
            return [(sender, Open(key, begun.attempt, begun.ranks))]
        return []

    def _has_result(self, rank: int, key: Key, attempt: Attempt) -> bool:
        return rank in self.said and self.said[rank].open.get(key) == attempt

    def _has_left(self, rank: int) -> bool:
        return rank in self.said and self.said[rank].left

    def _begin(self, key: Key) -> Words:
        needed = tuple(rank for rank in self._view.needed(key) if not self._has_left(rank))
        if not needed or not all(rank in self.said and key in self.said[rank].open for rank in needed):
            return []
        self._number += 1
        begun = self._begun[key] = _Begun(Attempt(self._view.epoch, self._number), needed)
        return [(rank, Open(key, begun.attempt, needed)) for rank in needed]

    def _commit(self, key: Key, begun: _Begun) -> Words:
        del self._begun[key]
        remember(self._committed, key, begun.attempt)
        return [(rank, Commit(key, begun.attempt)) for rank in begun.ranks]
