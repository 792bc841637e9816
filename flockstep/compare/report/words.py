"""A comparison in words: what ran where, and who came out ahead. Plain text; whoever writes it escapes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from flockstep.compare.folder import Record
from flockstep.compare.report.figures import Summary, yardstick
from flockstep.units import seconds as as_seconds
from flockstep.units import show_bytes, show_seconds

_AFTER = r"@(?P<at>[^+]+)(?:\+(?P<for>.+))?"
_FAULTS = (
    (rf"crash (?P<node>\d+){_AFTER}", "node {node} crashes after {at}", ", is back {for} later"),
    (rf"pause (?P<node>\d+){_AFTER}", "node {node} pauses after {at}", " for {for}"),
    (rf"slowdown (?P<node>\d+):(?P<by>[\d.]+)x{_AFTER}", "node {node} is {by} times slower after {at}", " for {for}"),
    (
        rf"partition (?P<one>[\d,]+)\|(?P<other>[\d,]+){_AFTER}",
        "nodes {one} are cut off from {other} after {at}",
        " for {for}",
    ),
)


def title(plan: Record) -> str:
    """What was trained, and on how many nodes of which kind."""
    nodes, kind = plan.cluster["nodes"], "real" if plan.real else "virtual"
    return f"Training {plan.workload} on {nodes} {kind} {'node' if nodes == 1 else 'nodes'}"


def cluster(plan: Record) -> str:
    """The declared cluster and how much was run on it."""
    declared = plan.cluster
    links = declared.get("links") or (f"{declared['link']} links" if declared.get("link") else "")
    parts = [links] if links else []
    parts += [f"{declared['latency']} latency"] if declared.get("latency") else []
    parts += [f"{show_seconds(as_seconds(declared['step']))} per gradient"] if declared.get("step") else []
    parts += [f"times uneven by {declared['spread']}"] if declared.get("spread") else []
    parts += [straggler(text) for text in declared.get("stragglers") or ()]
    parts += [fault(text) for text in declared.get("faults") or ()]
    steps = [f"{plan.steps:,} steps per node"] if plan.steps else []
    count = len(plan.seeds)
    return "; ".join([", ".join(parts)] * bool(parts) + [", ".join([*steps, f"{count} seed{'s' * (count > 1)}"])])


def straggler(text: Any) -> str:
    """``3:4x`` as a clause."""
    found = re.fullmatch(r"(\d+):([\d.]+)x?", str(text))
    return f"node {found[1]} is {found[2]} times slower" if found else f"straggler {text}"


def fault(text: Any) -> str:
    """``crash 5@60s`` as a clause; one of another kind as it is."""
    for pattern, clause, while_it_lasts in _FAULTS:
        found = re.fullmatch(pattern, str(text))
        if found:
            named = found.groupdict()
            return clause.format(**named) + (while_it_lasts.format(**named) if named["for"] else "")
    return str(text)


def findings(lines: Sequence[Summary], target: float | None) -> list[str]:
    """What the table says first: who was fastest to the target, and who sent least."""
    found, by = [], yardstick(lines)
    if by is not None and by.index != lines[0].index:
        found.append(
            f"{lines[0].label} did badly itself, not half as well as the best, and is no yardstick: {by.label} is. "
            "Try another learning rate (--lr)."
        )
    timed = [(line.time, line) for line in lines if line.time is not None]
    if target is not None and timed:
        time, best = min(timed, key=lambda pair: pair[0])
        after = f"Fastest to a loss of {target:.4g}: {best.label}, in {show_seconds(time)}"
        ahead = best.speedup is not None and by is not None and best.index != by.index
        found.append(after + (f", {times(best.speedup)} as fast as {by.label}." if ahead and by else "."))
    sent = [(line.sent, line) for line in lines if line.sent is not None]
    if len(sent) > 1:
        count, least = min(sent, key=lambda pair: pair[0])
        found.append(f"Fewest bytes: {least.label}, {show_bytes(count)} per node.")
    failed = [line.label for line in lines if line.failures]
    if failed:
        found.append(f"Ended early: {', '.join(failed)}.")
    for line in lines:
        found += [f"{line.label}: {line.drifts[0][1]}."] if line.drifts else []
    return found


def times(ratio: float | None) -> str:
    """``3.4 times``."""
    return "" if ratio is None else f"{ratio:.3g} times"
