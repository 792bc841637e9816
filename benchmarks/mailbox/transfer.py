"""Part A: 100 MB pulled over loopback, and 1 kB round trips, every row in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from benchmarks.mailbox.rows import WAYS
from benchmarks.mailbox.server import serving
from benchmarks.mailbox.ways import BODY_BYTES, ECHO, Caller, Place, Way, body, quartiles, request
from benchmarks.report import Progress

_ROUND_TRIPS = 200
Rates = dict[str, list[float]]


def compare(place: Place, rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """One row per way; those that this machine cannot run say why."""
    ways = {name: way for name, way in WAYS.items() if not way.lacks}
    with ExitStack() as stack:
        progress("starting the servers, one process per row")
        started = {name: stack.enter_context(serving(name, place)) for name in ways}
        callers: dict[str, Caller] = {}
        for name, way in ways.items():
            callers[name] = stack.enter_context(closing(way.connect(place, started[name].line())))
        _check(callers)
        pulled: Rates = {name: [] for name in callers}
        echoed: Rates = {name: [] for name in callers}
        for number in range(rounds):
            progress(f"transfer, round {number + 1} of {rounds}")
            for name in _order(list(callers), number):
                caller = callers[name]
                pulled[name].append(BODY_BYTES / _seconds(lambda: caller.pull()))  # noqa: B023
                echoed[name].append(_ROUND_TRIPS / _seconds(lambda: _round_trips(caller)))  # noqa: B023
    rows = [_row(name, way, pulled, echoed) for name, way in ways.items()]
    return rows + [{"way": name, "against": way.lacks} for name, way in WAYS.items() if way.lacks]


def _check(callers: dict[str, Caller]) -> None:
    """Whether every way brings the right bytes; and all are warm after it."""
    expected, small = body(), request(ECHO)
    for name, caller in callers.items():
        for _ in range(2):
            if not caller.pull().equal(expected) or not caller.echo(small).equal(small):
                raise RuntimeError(f"{name}: what arrived is not what was sent")


def _order(names: list[str], number: int) -> list[str]:
    """Another one first each time, and every other round backwards, so that nobody always follows the same one."""
    first = number % len(names)
    turned = names[first:] + names[:first]
    return turned[::-1] if number % 2 else turned


def _round_trips(caller: Caller) -> None:
    small = request(ECHO)
    for _ in range(_ROUND_TRIPS):
        caller.echo(small)


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _row(name: str, way: Way, pulled: Rates, echoed: Rates) -> dict[str, Any]:
    low, middle, high = quartiles(_ratios(pulled[name], pulled[way.against]))
    return {
        "way": name,
        "against": way.against,
        "ratio": round(middle, 3),
        "quartiles": f"{low:.3f} to {high:.3f}",
        "GB/s": round(statistics.median(pulled[name]) / 1e9, 2),
        "round trips/s": round(statistics.median(echoed[name])),
        "of those": round(statistics.median(_ratios(echoed[name], echoed[way.against])), 3),
        "rounds": len(pulled[name]),
    }


def _ratios(mine: list[float], others: list[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(mine, others, strict=True)]
