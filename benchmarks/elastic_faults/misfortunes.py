"""Misfortunes, one after another, that befall nodes of a run; and when each began and was over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.elastic_faults.diary import told
from benchmarks.elastic_faults.flock import CONTINUE, STOP, Flock

MEMBER, LEADER = "kill -9 of a member", "kill -9 of the leader"
STOPPED, CUT = "SIGSTOP", "link down"
BACK, GOES_ON, CONNECTED = "it is started again", "SIGCONT", "link up"
_CALM = 3
"""Rounds that all finish before the next misfortune."""


@dataclass
class Event:
    """Something that happens to a node."""

    what: str
    node: int
    at: float
    until: float = 0.0
    came_back: float | None = None
    """Seconds until its first finished round, where it comes back."""
    from_start: float | None = None
    """The same from the start of its process, where it was started."""
    since: float | None = None
    """When the misfortune began that it comes back from."""


def befall(flock: Flock, names: Sequence[str], seconds: dict[str, float]) -> list[Event]:
    """One after another; each is over when all have finished a few rounds together."""
    events: list[Event] = []
    for name in names:
        events += _DEEDS[name](flock, name, seconds)
        flock.rounds(_CALM)
    for event, following in itertools.pairwise(events):
        event.until = following.at
    events[-1].until = time.monotonic()
    return events


def _kill(flock: Flock, name: str, seconds: dict[str, float]) -> list[Event]:
    """Whoever kept it running starts it again at once."""
    node = 0 if name == LEADER else flock.size - 1
    at = time.monotonic()
    flock.kill(node)
    started = flock.start(node)
    joins = flock.until(lambda lines: told(lines, "joins", node=node, after=at), "a new life")[0]["at"]
    round = flock.first_round(node, joins)["at"]
    return [
        Event(name, node, at),
        Event(BACK, node, joins, came_back=round - joins, from_start=round - started, since=at),
    ]


def _stop(flock: Flock, name: str, seconds: dict[str, float]) -> list[Event]:
    return _for_a_while(
        flock, 1, name, GOES_ON, seconds[name], lambda: flock.signal(1, STOP), lambda: flock.signal(1, CONTINUE)
    )


def _cut(flock: Flock, name: str, seconds: dict[str, float]) -> list[Event]:
    node = flock.size // 2
    return _for_a_while(
        flock, node, name, CONNECTED, seconds[name], lambda: flock.link(node, "down"), lambda: flock.link(node, "up")
    )


def _for_a_while(
    flock: Flock,
    node: int,
    name: str,
    after: str,
    seconds: float,
    befall: Callable[[], None],
    heal: Callable[[], None],
) -> list[Event]:
    at = time.monotonic()
    befall()
    time.sleep(seconds)
    healed = time.monotonic()
    heal()
    round = flock.first_round(node, healed)["at"]
    return [Event(name, node, at), Event(after, node, healed, came_back=round - healed, since=at)]


_DEEDS: dict[str, Callable[[Flock, str, dict[str, float]], list[Event]]] = {
    MEMBER: _kill,
    LEADER: _kill,
    STOPPED: _stop,
    CUT: _cut,
}
