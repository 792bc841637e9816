"""From diaries to figures: who stood still, and for how long."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.elastic_faults.diary import Line, told


def progress(lines: Sequence[Line], node: int) -> list[float]:
    """When a node finished steps that it had not finished before: what is done again is no progress."""
    moments, furthest = [], -1
    for line in told(lines, "step", node=node):
        if line["step"] > furthest:
            furthest = line["step"]
            moments.append(line["at"])
    return moments


def gaps(moments: Sequence[float], begin: float, end: float) -> list[float]:
    """How long each wait for progress was that ended within a time, or had not ended by its end."""
    inside = [begin, *(moment for moment in moments if begin < moment < end), end]
    before = [moment for moment in moments if moment <= begin][-1:] or [begin]
    waits = [*before, *inside[1:]]
    return [later - earlier for earlier, later in itertools.pairwise(waits)]


def usual_gap(lines: Sequence[Line], nodes: Sequence[int], begin: float, end: float) -> float:
    """The longest that anybody waited for progress in a calm time: steps that end a round take longest."""
    return max(gap for node in nodes for gap in gaps(progress(lines, node), begin, end))


def lost(lines: Sequence[Line], nodes: Sequence[int], begin: float, end: float, usual: float) -> float:
    """The seconds that nodes made no progress in, beyond what is usual: of the node that lost most."""
    return max(sum(max(0.0, g - usual) for g in gaps(progress(lines, node), begin, end)) for node in nodes)


def longest(lines: Sequence[Line], nodes: Sequence[int], begin: float, end: float) -> float:
    """The longest that one of them made no progress, with nothing taken off."""
    return max(gap for node in nodes for gap in gaps(progress(lines, node), begin, end))
