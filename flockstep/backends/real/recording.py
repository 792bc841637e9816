"""What a real node records of itself: where its time and its bytes go, and what its main task does now."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flockstep.live.journal import Journal


from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flockstep.backends.real.drive import in_background
from flockstep.timeline import Timeline
from flockstep.trace import NodeReport


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A timeline for the trace, a journal for onlookers, both, or nothing."""

    timeline: bool = False
    journal: str = ""
    """The folder of the journals."""

    @classmethod
    def from_environment(cls, *, timeline: bool = False) -> Recording:
        """With the journal that the environment asks for."""
        return cls(timeline=timeline, journal=os.environ.get("FLOCKSTEP_JOURNAL", ""))

    def open_journal(self, rank: int, size: int, strategy: str) -> Journal | None:
        """A node's own journal, where there is to be one."""
        if not self.journal:
            return None
        # Only here: a run that nobody watches need not know how.
        from flockstep.live.journal import open_journal

        return open_journal(self.journal, rank=rank, size=size, strategy=strategy)


class Stopwatch:
    """Always runs for one kind of thing or for none; the seconds go to a report, and to a timeline where one is kept.

    So what happens inside of something else is counted once: asking for a model in the middle of the user's own
    computing is talking, and only that.
    """

    def __init__(self, tally: NodeReport, timeline: Timeline | None, now: Callable[[], float]) -> None:
        self._tally, self._timeline, self._now = tally, timeline, now
        self._kind: str | None = None
        self._since = 0.0

    def turn(self, kind: str | None) -> str | None:
        """From now on time counts as computing, waiting, talking, or not at all; gives what it counted as before."""
        now, before = self._now(), self._kind
        if before is not None:
            setattr(self._tally, before, getattr(self._tally, before) + (now - self._since))
            if self._timeline is not None:
                self._timeline.spend(self._tally.rank, before, self._since, now)
        self._kind, self._since = kind, now
        return before

    @contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """The time of a block. In a background task nothing is counted: it does not pass for the node."""
        if in_background():
            yield
            return
        before = self.turn(kind)
        try:
            yield
        finally:
            self.turn(before)
