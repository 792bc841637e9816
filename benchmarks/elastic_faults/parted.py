"""A network that falls into two parts, and is one again: what each part did meanwhile, and what became of it."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.elastic_faults import figures
from benchmarks.elastic_faults.diary import Line, told
from benchmarks.elastic_faults.flock import Flock
from benchmarks.elastic_faults.node import PERIOD
from benchmarks.elastic_faults.ours import Kind, environment, words
from benchmarks.elastic_faults.rows import Row, Setting
from flockstep.compare.lab.lab import Lab

STRATEGY = "DiLoCo"
_CALM = 3


class Parting(NamedTuple):
    """How many were on each side, the first nodes on the first; and for how long."""

    first: int
    second: int
    seconds: float

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.first}:{self.second}"


def parted(parting: Parting, setting: Setting) -> list[Row]:
    """A row of each side."""
    nodes = parting.first + parting.second
    apart = range(parting.first, nodes)
    with tempfile.TemporaryDirectory() as name, Lab(nodes=nodes, rate=setting.rate) as lab:
        folder = Path(name)
        flock = Flock(lab, folder, words(setting, STRATEGY, folder), environment(Kind(STRATEGY), folder, nodes))
        for rank in range(nodes):
            flock.start(rank)
        flock.rounds(setting.calm)
        began = time.monotonic()
        flock.part(apart)
        time.sleep(parting.seconds)
        healed = time.monotonic()
        flock.heal(apart)
        flock.until(lambda lines: together(lines, nodes, healed), "a round of all nodes")
        flock.rounds(_CALM)
        ends = flock.end(PERIOD)
        lines = flock.lines
    all_alike = len({end["model"] for end in ends}) == 1
    sides = (range(parting.first), apart)
    return [
        {"run": f"parted {parting.name}", **of_side(side, nodes, lines, ends, began, healed), "models alike": all_alike}
        for side in sides
    ]


def together(lines: Sequence[Line], nodes: int, after: float) -> float | None:
    """When the last of all nodes had the result of the first round that all took part in."""
    rounds: dict[Any, set[int]] = {}
    for line in told(lines, "round", after=after):
        if len(line["among"]) == nodes:
            there = rounds.setdefault(line["round"], set())
            there.add(line["node"])
            if len(there) == nodes:
                return float(line["at"])
    return None


def of_side(side: range, nodes: int, lines: list[Line], ends: list[Line], began: float, healed: float) -> Row:
    """What the nodes of one side did, those of all alike told once."""
    steps = [told((x for x in lines if began < x["at"] <= healed), "step", node=rank) for rank in side]
    rounds = [told((x for x in lines if began < x["at"] <= healed), "round", node=rank) for rank in side]
    back = together(lines, nodes, healed)
    return {
        "nodes": " ".join(map(str, side)),
        "cut for": round(healed - began, 1),
        "steps meanwhile": most_and_least(len(those) for those in steps),
        "rounds meanwhile": most_and_least(len(those) for those in rounds),
        "longest standstill": round(figures.longest(lines, side, began, healed), 2),
        "all together after": round((back or float("nan")) - healed, 2),
        "every step once": all(is_unbroken(lines, rank) for rank in side),
        "left out": sum(ends[rank]["counts"].get("times left out", 0) for rank in side),
        "views": "; ".join(dict.fromkeys(views(ends[rank]) for rank in side)),
        "last step": " ".join(dict.fromkeys(str(ends[rank]["step"]) for rank in side)),
    }


def most_and_least(counts: Any) -> str:
    """A number, or two."""
    least, *rest = sorted({*counts})
    return f"{least} to {rest[-1]}" if rest else str(least)


def is_unbroken(lines: Sequence[Line], node: int) -> bool:
    """Whether a node's steps follow each other, none of them twice and none left out."""
    steps = [line["step"] for line in told(lines, "step", node=node)]
    return all(after == before + 1 for before, after in itertools.pairwise(steps))


def views(end: Line) -> str:
    """How a node saw the view change."""
    changes = [f"-{_those(went)}" if went else f"+{_those(came)}" for _, came, went in end["views"]]
    return " ".join(changes) or "unchanged"


def _those(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))
