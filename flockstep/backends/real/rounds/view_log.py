"""How the nodes that take part have changed, and what each change has cost this node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flockstep.backends.real.rounds.council.words import View
from flockstep.trace import ViewChange


class ViewLog:
    """One node's."""

    def __init__(self) -> None:
        self._waiting_since: float | None = None
        self._told: Callable[[ViewChange], None] = lambda change: None
        self._again: Callable[[], None] = lambda: None

    def follow(self, told: Callable[[ViewChange], None], again: Callable[[], None]) -> None:
        """Let these hear of every change, and of every round that is begun again."""
        self._told, self._again = told, again

    @contextmanager
    def waiting(self, *, is_main: bool) -> Iterator[None]:
        """Inside, this node's own task waits in a round."""
        if not is_main:
            yield
            return
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = None

    def again(self) -> None:
        """A round is begun again."""
        self._again()

    def changed(self, view: View, before: View) -> None:
        """There is a new view. It has cost as long as a round has stood still for it."""
        came = tuple(sorted(view.members.keys() - before.members.keys()))
        went = tuple(sorted(before.members.keys() - view.members.keys()))
        if not (came or went):
            return
        since = self._waiting_since
        cost = 0.0 if since is None else time.monotonic() - since
        self._told(ViewChange(tuple(view.active), came, went, cost, number=view.epoch))
