"""One node from its first word to its last, as its journal tells it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from flockstep.live.coarse import at_most
from flockstep.live.lines import Line
from flockstep.timeline import KINDS, Span
from flockstep.trace import ViewChange

# As much as is kept here of a long run: of what is old, less.
_SPANS, _ROWS, _GRAIN = 6000, 6000, 0.01
# Changes of the view that are kept here.
_VIEWS = 100
# Beats over which the pace of steps is taken.
_BEATS = 40


@dataclass
class Life:
    """What is known of it. Times are seconds since it ``began``, which is a moment of the clock on the wall."""

    rank: int
    size: int
    incarnation: int
    strategy: str
    host: str
    pid: int
    born: int | None
    began: float
    local: bool
    """Whether its process runs on this machine, where one can look whether it lives."""
    spans: list[Span] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    """By kind, over its whole life."""
    sent: dict[int, int] = field(default_factory=dict)
    spoke: dict[int, float] = field(default_factory=dict)
    """When it last sent something, by peer."""
    last_to: int | None = None
    steps: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    living: tuple[int, ...] | None = None
    losses: dict[int, float] = field(default_factory=dict)
    """Peers it has seen and sees no more, and since when."""
    views: deque[ViewChange] = field(default_factory=lambda: deque(maxlen=_VIEWS))
    """Who takes part, in an elastic run: as it began, and every change. Seconds are since this node began."""
    heard: float = 0.0
    """When it last said anything."""
    left: float | None = None
    failure: str = ""
    dead: bool = False
    """Its process is gone, and it never said farewell."""
    pace: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_BEATS))

    @classmethod
    def of(cls, who: dict[str, Any], *, here: str) -> Life:
        """From the first line of a journal."""
        names = ("rank", "size", "incarnation", "strategy", "host", "pid", "born", "began")
        return cls(**{name: who[name] for name in names}, local=who["host"] == here)

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.dead or self.left is not None

    @property
    def rate(self) -> float:
        """Steps a second, lately."""
        if len(self.pace) < 2 or self.pace[-1][0] == self.pace[0][0]:
            return 0.0
        return (self.pace[-1][1] - self.pace[0][1]) / (self.pace[-1][0] - self.pace[0][0])

    def take(self, line: Line) -> None:
        """One more line."""
        if "row" in line:
            self._take_row(line["row"])
        elif "peers" in line:
            self._take_peers(tuple(line["peers"]), line["t"])
        elif "view" in line:
            self._take_view(ViewChange(**line["view"], seconds=line["t"]))
        elif "left" in line:
            self.left = self.heard = line["left"]["t"]
            self.failure = line["left"].get("failure", "")
        elif "t" in line:
            self._take_beat(line)

    def _take_row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.steps = max(self.steps, row["step"])
        if len(self.rows) > _ROWS:
            half = _ROWS // 2
            self.rows = self.rows[:half:2] + self.rows[half:]

    def _take_peers(self, living: tuple[int, ...], when: float) -> None:
        for peer in set(self.living or ()) - set(living):
            self.losses[peer] = when
        for peer in living:
            self.losses.pop(peer, None)
        self.living, self.heard = living, when

    def _take_view(self, change: ViewChange) -> None:
        self.views.append(change)
        self.heard = change.seconds
        # Of those it begins with, some may not be there yet.
        if change.came or change.went:
            self._take_peers(tuple(rank for rank in change.members if rank != self.rank), change.seconds)

    def _take_beat(self, beat: Line) -> None:
        self.heard = beat["t"]
        for kind, begin, end in beat.get("spans", ()):
            self.spans.append(Span(self.rank, KINDS[kind], begin, end))
            self.seconds[KINDS[kind]] += end - begin
        if len(self.spans) > _SPANS:
            newest = self.spans[-_SPANS // 3 :]
            self.spans = at_most(self.spans[: -_SPANS // 3], _SPANS // 3, _GRAIN) + newest
        for peer, nbytes, *when in beat.get("sent", ()):
            self.sent[peer] = self.sent.get(peer, 0) + nbytes
            self.spoke[peer] = when[0] if when else beat["t"]
        self.last_to = beat.get("to", self.last_to)
        self.steps = beat.get("steps", self.steps)
        self.pace.append((beat["t"], self.steps))
