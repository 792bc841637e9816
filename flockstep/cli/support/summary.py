"""Two runs compared in plain words, every figure taken from the runs themselves."""

from __future__ import annotations

import math

from flockstep.trace import Trace
from flockstep.units import show_seconds

# Closer than this, two amounts are told as about the same.
_ALIKE = 0.05


def compare(where: str, baseline: Trace, other: Trace) -> str:
    """What ``other`` cost and where its loss ended, next to ``baseline``."""
    old, new = name(baseline), name(other)
    sent = amount(other.bytes_sent, baseline.bytes_sent, below="fewer", above="more", alike="about as many")
    took = amount(other.seconds, baseline.seconds, below="less", above="more", alike="about as much")
    return (
        f"Next to {old} on {where}, {new} sent {sent} bytes and took {took} time; "
        f"its loss ended at {other.loss:.3f}, that of {old} at {baseline.loss:.3f}."
    )


def race(baseline: Trace, other: Trace) -> str:
    """How long each took to the loss that both reached, and what they did with the time."""
    old, new = name(baseline), name(other)
    target = max(baseline.loss, other.loss)
    times = [show_seconds(trace.time_to(target) or 0.0) for trace in (baseline, other)]
    return (
        f"To a loss of {target:.3f} it took {old} {times[0]} and {new} {times[1]}. "
        f"{old} computed for {baseline.busy:.0%} of its time and {new} for {other.busy:.0%}: "
        "the rest went into talking and waiting."
    )


def amount(new: float, old: float, *, below: str, above: str, alike: str) -> str:
    """``8.0 times fewer``, ``12% more`` or ``about as many``."""
    if new == old:
        return alike
    if min(new, old) <= 0:
        return "no" if new < old else above
    word, ratio = (below, old / new) if new < old else (above, new / old)
    if math.isclose(ratio, 1.0, rel_tol=_ALIKE):
        return alike
    if ratio >= 2:
        return f"{ratio:.1f} times {word}" if ratio < 10 else f"{ratio:.0f} times {word}"
    return f"{1 - 1 / ratio if word == below else ratio - 1:.0%} {word}"


def name(trace: Trace) -> str:
    """The strategy's name without its arguments."""
    return trace.strategy.partition("(")[0]
