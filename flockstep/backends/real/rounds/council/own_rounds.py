"""The rounds that a node's own program waits in, and those whose result it has taken lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from flockstep.backends.real.rounds.council.words import Attempt, Key, View, Word

MOST_AT_ONCE = 8
"""How many rounds of one channel a program may wait in at once."""


class Port(Protocol):
    """What a council has done for it. All of it returns at once."""

    def say(self, peer: int, word: Word) -> None:
        """Send a word; it may be lost."""

    def carry_out(self, key: Key, attempt: Attempt, ranks: tuple[int, ...]) -> None:
        """Take the mean of what these brought; ``Council.finished`` is to be told."""

    def abandon(self, attempt: Attempt) -> None:
        """An attempt will not be committed."""

    def deliver(self, key: Key, attempt: Attempt, ranks: tuple[int, ...]) -> None:
        """The result of this attempt counts."""

    def installed(self, view: View, before: View) -> None:
        """There is a new view, and this node is in it."""

    def left_out(self, view: View) -> None:
        """The others go on without this node; its council is over, and it comes back with another life."""


def remember(rounds: dict[Key, Attempt], key: Key, attempt: Attempt) -> None:
    """Note a round as done; one of the same channel that nobody can wait in any more is forgotten."""
    rounds[key] = attempt
    rounds.pop(Key(key.channel, key.round - MOST_AT_ONCE), None)


@dataclass
class _Waiting:
    """A round that this node waits in."""

    ranks: tuple[int, ...] = ()
    attempt: Attempt | None = None
    """The newest attempt at it."""
    has_result: bool = False
    has_failed: bool = False


class OwnRounds:
    """One node's."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._waiting: dict[Key, _Waiting] = {}
        self.delivered: dict[Key, Attempt] = {}
        """In this view."""

    def bring(self, key: Key) -> None:
        """Wait in a round."""
        self._waiting.setdefault(key, _Waiting())

    def withdraw(self, key: Key) -> bool:
        """Wait in a round no more; False if an attempt at it is under way."""
        waiting = self._waiting.get(key)
        if waiting is None or waiting.attempt is not None:
            return False
        del self._waiting[key]
        return True

    def finished(self, key: Key, attempt: Attempt) -> None:
        """This node has the result of an attempt."""
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.attempt == attempt:
            waiting.has_result = True

    def failed(self, key: Key, attempt: Attempt) -> None:
        """This node could not reach another in an attempt."""
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.attempt == attempt:
            waiting.has_failed = True

    def carry_out(self, key: Key, attempt: Attempt, ranks: tuple[int, ...]) -> None:
        """Take part in an attempt, unless it is out of date."""
        waiting = self._waiting.get(key)
        if waiting is not None and (waiting.attempt is None or waiting.attempt < attempt):
            self._abandon(waiting)
            waiting.attempt, waiting.ranks = attempt, ranks
            self._port.carry_out(key, attempt, ranks)

    def deliver(self, key: Key, attempt: Attempt) -> None:
        """Take the result of an attempt, which counts."""
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.attempt == attempt and waiting.has_result:
            del self._waiting[key]
            remember(self.delivered, key, attempt)
            self._port.deliver(key, attempt, waiting.ranks)

    def results(self) -> dict[Key, Attempt | None]:
        """The rounds this node waits in, and of which attempt it has the result."""
        return {key: waiting.attempt if waiting.has_result else None for key, waiting in self._waiting.items()}

    def failures(self) -> tuple[Attempt, ...]:
        """Attempts in which this node could not reach another."""
        return tuple(w.attempt for w in self._waiting.values() if w.attempt is not None and w.has_failed)

    def begin_anew(self, committed: Mapping[Key, Attempt]) -> None:
        """There is a new view: rounds that were not committed in the last one begin again."""
        self.delivered = {}
        for key, waiting in self._waiting.items():
            if waiting.attempt != committed.get(key) or not waiting.has_result:
                self._abandon(waiting)

    def deliver_all(self, committed: Mapping[Key, Attempt]) -> None:
        """Take the results of what was committed in the last view."""
        for key, attempt in committed.items():
            self.deliver(key, attempt)

    def _abandon(self, waiting: _Waiting) -> None:
        if waiting.attempt is not None:
            self._port.abandon(waiting.attempt)
        waiting.attempt, waiting.has_result, waiting.has_failed = None, False, False
