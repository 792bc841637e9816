"""What a run was like, and what each of its misfortunes cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.elastic_faults import figures
from benchmarks.elastic_faults.diary import Line, told
from benchmarks.elastic_faults.misfortunes import Event

Row = dict[str, Any]


class Setting(NamedTuple):
    """What all runs have alike."""

    nodes: int
    rate: str
    patience: float
    step_seconds: float
    seconds: Mapping[str, float]
    """How long each misfortune lasts that has a length."""
    misfortunes: Sequence[str]
    calm: int
    """Rounds before the first misfortune."""


def row_of(
    name: str, event: Event, calm_until: float, lines: list[Line], setting: Setting, transfer: float | None = None
) -> Row:
    """What an event cost the others, and how long who came back took."""
    others = [rank for rank in range(setting.nodes) if rank != event.node]
    usual = figures.usual_gap(lines, range(setting.nodes), *calm_time(lines, setting.nodes, calm_until))
    row: Row = {
        "run": name,
        "event": event.what,
        "node": event.node,
        "seconds lost": round(figures.lost(lines, others, event.at, event.until, usual), 2),
        "longest standstill": round(figures.longest(lines, others, event.at, event.until), 2),
        "usual": round(usual, 2),
        "over": round(event.until - event.at, 1),
    }
    if event.since is not None:
        row["lost with what led to it"] = round(figures.lost(lines, others, event.since, event.until, usual), 2)
    if event.came_back is not None:
        row["seconds to a round"] = round(event.came_back, 2)
        if transfer is not None:
            row["its state travels"] = round(transfer, 2)
    if event.from_start is not None:
        row |= {"from the process's start": round(event.from_start, 2)}
    return row


def calm_time(lines: list[Line], nodes: int, until: float) -> tuple[float, float]:
    """From when all had finished a round until the first misfortune."""
    return max(told(lines, "round", node=rank)[0]["at"] for rank in range(nodes)), until
