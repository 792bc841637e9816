"""Who takes part in an elastic run, and how that has changed: one story out of what all nodes tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flockstep.live.life import Life
from flockstep.trace import ViewChange

_SHOWN = 20


class _Heard(NamedTuple):
    """A change as one node tells it."""

    at: float
    rank: int
    change: ViewChange


def taking_part(lives: Sequence[Life], began: float) -> dict[str, Any] | None:
    """Who takes part, and the last changes of that, the newest first; None in a run that is not elastic."""
    groups = _same(
        _Heard(life.began - began + change.seconds, life.rank, change) for life in lives for change in life.views
    )
    if not groups:
        return None
    members = groups[-1][0].change.members
    changes = [made for group in reversed(groups) if (made := _merged(group))["what"]]
    return {"members": list(members), "who": _listed(members), "changes": changes[:_SHOWN]}


def _same(heard: Iterable[_Heard]) -> list[list[_Heard]]:
    """What is heard of each view, in order of when that was first heard of.

    A view is known by its number and its members. A node tells of each once: what it tells again is of another view,
    since a run that all were lost of begins to count anew.
    """
    groups: list[list[_Heard]] = []
    newest: dict[tuple[int, tuple[int, ...]], list[_Heard]] = {}
    for one in sorted(heard, key=lambda one: one.at):
        key = (one.change.number, one.change.members)
        if key not in newest or any(other.rank == one.rank for other in newest[key]):
            newest[key] = []
            groups.append(newest[key])
        newest[key].append(one)
    return groups


def _merged(group: list[_Heard]) -> dict[str, Any]:
    # To one that came all others are new, too: those who were there know better.
    change = next((one.change for one in group if one.rank not in one.change.came), group[0].change)
    return {
        "at": group[0].at,
        "what": change.what,
        "members": list(change.members),
        "came": list(change.came),
        "went": list(change.went),
        "waited": max(one.change.cost for one in group),
    }


def _listed(ranks: Sequence[int]) -> str:
    """Ranks in order, as ``0-3, 5``: short also where there are many."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
