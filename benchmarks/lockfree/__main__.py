"""How much faster are two cores than one, on one vector and without a lock?

Gradient steps per second of a crew of two over those of a crew of one, by the clock on the wall, in alternating turns;
a speed-up is taken within a turn, and its median and quartiles over all turns are told. torch has one thread in each
member. Nothing else should run meanwhile.

Sparse logistic regression (numba, threads): a9a with a row per step and a write to the shared vector after every
`publish` steps; the same with a write after every step, which is Hogwild to the letter; with bigger batches; and the
20 Newsgroups, whose vector is a hundred times longer. A small convolutional net (torch, processes on shared memory):
beside it torch's own hogwild pattern. Both with a lock, and both *apart*: two processes that share nothing show what
the machine itself allows, and no crew can be expected to do better.

Bars: at least 1.8 for a9a, at least 1.6 for the net.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.lockfree import net, rows
from benchmarks.lockfree.ways import measure
from benchmarks.report import Progress, arguments, finish
from flockstep.workloads.sparse import SparseLogistic

NAME = "benchmarks.lockfree"
RESULTS = Path(__file__).parents[1] / "results"
LEAST_SPARSE, LEAST_NET = 1.8, 1.6
NET, NET_STEPS = "net", 60


def cases(*, quick: bool) -> dict[str, tuple[SparseLogistic, int]]:
    """Sparse problems and how many steps of them take a twentieth of a second; the bar is on the first.

    Short turns, because a rented core is faster now and slower then: what is compared should share its weather.
    """
    name, data = rows.a9a()
    found = {
        f"{name}, batch 1": (SparseLogistic(data=data), 400_000),
        f"{name}, batch 1, published each step": (SparseLogistic(data=data, publish=1), 400_000),
        f"{name}, batch 64, published each step": (SparseLogistic(data=data, batch=64, publish=1), 6_000),
    }
    if not quick and (posts := rows.newsgroups()) is not None:
        found["20 Newsgroups, batch 1"] = SparseLogistic(data=posts), 100_000
    return found


def main() -> None:
    """Measure, and say what was met."""
    options = arguments(NAME, __doc__ or "").parse_args()
    torch.set_num_threads(1)
    turns, part = (1, 8) if options.quick else (61, 1)
    problems = cases(quick=options.quick)
    progress, told = Progress((len(problems) + 1) * turns), []
    for case, (workload, steps) in problems.items():
        with ExitStack() as stack:
            told += measure(case, rows.ways(stack, workload), steps // part, turns, progress)
    with ExitStack() as stack:
        told += measure(NET, net.ways(stack), NET_STEPS // part, turns, progress)
    finish(
        NAME,
        told,
        figures=_figures(told, list(problems)),
        met=_bars(told, next(iter(problems))),
        folder=options.out or (None if options.quick else RESULTS),
        note=f"a lock on rows is held for {rows.HELD} steps at a time; the net has batches of {net.BATCH}.",
    )


def _speed_up(told: list[dict[str, Any]], case: str, way: str) -> float:
    return next(float(row["speed-up"]) for row in told if row["case"] == case and row["way"].startswith(way))


def _bars(told: list[dict[str, Any]], first: str) -> dict[str, bool]:
    sparse, apart = (_speed_up(told, first, way) for way in ("2 threads, lock-free", "2 processes apart"))
    images, alone = (_speed_up(told, NET, way) for way in ("2 processes, lock-free", "2 processes apart"))
    return {
        f"{first}: {sparse} times one thread, at least {LEAST_SPARSE} (apart: {apart})": sparse >= LEAST_SPARSE,
        f"{NET}: {images} times one thread, at least {LEAST_NET} (apart: {alone})": images >= LEAST_NET,
    }


def _figures(told: list[dict[str, Any]], problems: list[str]) -> dict[str, Any]:
    free, apart = "2 threads, lock-free", "2 processes apart"
    figures = {
        case: {"speed_up": _speed_up(told, case, free), "apart": _speed_up(told, case, apart)} for case in problems
    }
    figures[NET] = {
        "speed_up": _speed_up(told, NET, "2 processes, lock-free"),
        "apart": _speed_up(told, NET, apart),
        "torch": _speed_up(told, NET, "torch's hogwild, 2"),
    }
    return figures


if __name__ == "__main__":
    main()
