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
    first = traces[0]
    least = min(traces, key=lambda trace: trace.bytes_sent)
    best = min(traces, key=lambda trace: trace.loss)
    busiest = max(traces, key=lambda trace: trace.busy)
    sent = _beside(first, least, lambda trace: f"{show_bytes(trace.bytes_sent)} a node")
    loss = _beside(first, best, lambda trace: f"{trace.loss:.3f}")
    busy = _beside(first, busiest, lambda trace: f"{trace.busy:.0%}")
    return (
        f"{name(least)} sent the least, {sent}; {name(best)} ended at the lowest loss, {loss}; "
        f"{name(busiest)} computed for the largest share of its time, {busy}."
    )


def _beside(first: Trace, other: Trace, show: Callable[[Trace], str]) -> str:
    """A figure of one run, and in brackets that of the first, where that is another."""
    return show(other) if other is first else f"{show(other)} ({name(first)} {show(first)})"


def name(trace: Trace) -> str:
    """The strategy's name without its arguments."""
    return trace.strategy.partition("(")[0]
