"""Runs of one place compared in plain words, every figure taken from the runs themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flockstep.trace import Trace
from flockstep.units import show_bytes, show_seconds


def reached(traces: Sequence[Trace]) -> float:
    """The loss that all of them came down to: the highest at which one ended."""
    return max(trace.loss for trace in traces)


def race(where: str, traces: Sequence[Trace]) -> str:
    """Who came first, second and so on to the loss that all reached."""
    target = reached(traces)
    times = {name(trace): trace.time_to(target) for trace in traces}
    # None: a loss that is not a number is never reached.
    arrived = sorted((seconds, who) for who, seconds in times.items() if seconds is not None)
    order = ", ".join(f"{who} after {show_seconds(seconds)}" for seconds, who in arrived)
    return f"On {where} they reached a loss of {target:.3f} in this order: {order}."


def costs(traces: Sequence[Trace]) -> str:
    """Who sent least, who ended lowest and who computed most, each next to the first of them."""
    sent = _best(traces, lambda trace: trace.bytes_sent, lambda trace: f"{show_bytes(trace.bytes_sent)} a node")
    loss = _best(traces, lambda trace: trace.loss, lambda trace: f"{trace.loss:.3f}")
    busy = _best(traces, lambda trace: -trace.busy, lambda trace: f"{trace.busy:.0%}")
    return (
        f"The least was sent by {sent}; the lowest loss at the end is that of {loss}; "
        f"computing took the largest share of the time of {busy}."
    )


def _best(traces: Sequence[Trace], cost: Callable[[Trace], float], show: Callable[[Trace], str]) -> str:
    """Whose figure is the best, all of them where several show the same, and in brackets the first run's."""
    first, figure = traces[0], show(min(traces, key=cost))
    names = " and ".join(name(trace) for trace in traces if show(trace) == figure)
    return f"{names}, {figure}" if show(first) == figure else f"{names}, {figure} ({name(first)} {show(first)})"


def name(trace: Trace) -> str:
    """The strategy's name without its arguments."""
    return trace.strategy.partition("(")[0]
