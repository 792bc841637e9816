"""Steps to a fixed gradient norm of the average model against the number of nodes, for CELGC with I = 1 and I = 4.

The learning rate is chosen for each number of nodes from one grid, the same for all: the one with the smallest median
number of steps among those that reach the target with every seed. Whatever the number of nodes, a run may compute as
many gradients in total. See README.md beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import flockstep as fs
from benchmarks.report import Progress, arguments, finish, keep
from experiments.celgc_speedup.picture import draw
from experiments.celgc_speedup.runs import CLIP_AT, Rate, best, celgc, run
from experiments.celgc_speedup.wells import Wells

NAME = "experiments.celgc_speedup"
PERIODS = (1, 4)
TARGET = 0.5
GRADIENTS = 6_000
LONG, NEVER = 64, GRADIENTS
"""Periods of the controls: sixteen times the longer one above, and no average within any run."""
LEAST_SPEEDUP = 6.0
BAR_NODES = 8

Key = tuple[int, int]
"""A period and a number of nodes."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is tried."""

    nodes: Sequence[int]
    exponents: Sequence[float]
    seeds: int

    @property
    def rates(self) -> list[float]:
        """The one grid of learning rates."""
        return [2.0**exponent for exponent in self.exponents]


FULL = Plan(nodes=(1, 2, 4, 8, 16), exponents=[-9.5 + k / 2 for k in range(13)], seeds=5)
QUICK = Plan(nodes=(1, 8), exponents=(-8, -5.5), seeds=1)


def trial(strategy: fs.Strategy, problem: Wells, plan: Plan, nodes: int, rate: float) -> Rate:
    """One learning rate, all seeds."""
    limit = GRADIENTS // nodes
    runs = [
        run(strategy, problem, nodes=nodes, rate=rate, target=TARGET, limit=limit, seed=seed)
        for seed in range(plan.seeds)
    ]
    return Rate(rate, runs)


def grid_row(strategy: str, period: int, nodes: int, rate: Rate, chosen: bool) -> dict[str, Any]:
    """One learning rate, as it is kept."""
    return {
        "strategy": strategy,
        "I": period,
        "n": nodes,
        "learning rate": rate.rate,
        "chosen": chosen,
        "reached": f"{len(rate.reached)}/{len(rate.runs)}",
        "median": rate.median or "",
        "steps of each seed": " ".join(str(run.steps or "-") for run in rate.runs),
        "first of each seed": " ".join(str(run.first or "-") for run in rate.runs),
        "clipped": round(rate.clipped, 4),
        "bytes per node": round(rate.bytes_sent),
    }


def summary_row(problem: Wells, period: int, nodes: int, rate: Rate, one: Rate | None) -> dict[str, Any]:
    """The chosen learning rate, and what it came to."""
    steps = rate.median or 0.0
    return {
        "I": period,
        "n": nodes,
        "learning rate": rate.rate,
        "gamma": CLIP_AT * problem.sigma * rate.rate,
        "steps": steps,
        "fewest": rate.reached[0],
        "most": rate.reached[-1],
        "times fewer": round(one.median / steps, 2) if one and one.median else "",
        "clipped": round(rate.clipped, 4),
        "bytes per node": round(rate.bytes_sent),
        "gradients": nodes * steps,
    }


def search(problem: Wells, plan: Plan, progress: Progress) -> dict[Key, list[Rate]]:
    """Every learning rate for every period and number of nodes."""
    tried: dict[Key, list[Rate]] = {}
    for period in PERIODS:
        for nodes in plan.nodes:
            tried[period, nodes] = []
            for rate in plan.rates:
                progress(f"I = {period}, n = {nodes}, learning rate {rate:.4g}")
                tried[period, nodes].append(trial(celgc(problem, period, rate), problem, plan, nodes, rate))
    return tried


def controls(problem: Wells, plan: Plan, progress: Progress) -> tuple[list[str], list[dict[str, Any]]]:
    """What the clip and the averaging are worth: the same without the one, and with ever less of the other."""
    told, rows = [], []
    for name, period in (("LocalSGD", 1), ("CELGC", LONG), ("CELGC", NEVER)):
        tried = []
        for rate in plan.rates:
            progress(f"{name}, I = {period}, n = {BAR_NODES}, learning rate {rate:.4g}")
            strategy = fs.LocalSGD(period=period) if name == "LocalSGD" else celgc(problem, period, rate)
            tried.append(trial(strategy, problem, plan, BAR_NODES, rate))
        fastest = best(tried)
        arrived = f"{fastest.median:g} steps" if fastest else "no learning rate arrives with every seed"
        diverged = sum(any(run.diverged for run in rate.runs) for rate in tried)
        told.append(f"{name}, I = {period}, n = {BAR_NODES}: {arrived}; {diverged} of {len(tried)} diverge")
        rows += [grid_row(name, period, BAR_NODES, rate, rate is fastest) for rate in tried]
    return told, rows


def each_best(tried: Mapping[Key, Sequence[Rate]]) -> dict[Key, Rate]:
    """The best learning rate of each, where one arrives."""
    return {key: found for key, rates in tried.items() if (found := best(rates)) is not None}


def speedups(chosen: Mapping[Key, Rate]) -> dict[int, float]:
    """How many times fewer steps many nodes take than one, by period; 0 where either never arrived."""
    times = {}
    for period in PERIODS:
        one, many = (chosen.get((period, nodes)) for nodes in (1, BAR_NODES))
        times[period] = round(one.median / many.median, 2) if one and many and one.median and many.median else 0.0
    return times


def main() -> None:
    """Search, then tell."""
    options = arguments(NAME, __doc__ or "").parse_args()
    torch.set_num_threads(1)
    plan = QUICK if options.quick else FULL
    folder = options.out or (None if options.quick else Path(__file__).parent)
    problem = Wells()
    progress = Progress((len(PERIODS) * len(plan.nodes) + 3) * len(plan.rates))
    tried = search(problem, plan, progress)
    told, more = controls(problem, plan, progress)
    chosen = each_best(tried)
    grid = [grid_row("CELGC", *key, rate, rate is chosen.get(key)) for key, rates in tried.items() for rate in rates]
    rows = [summary_row(problem, *key, rate, chosen.get((key[0], 1))) for key, rate in chosen.items()]
    by_first = each_best({key: [rate.by_first() for rate in rates] for key, rates in tried.items()})
    medians = ", ".join(f"I = {period}, n = {nodes}: {rate.median:g}" for (period, nodes), rate in by_first.items())
    note = "\n".join([*told, f"by the first small gradient, steps are: {medians}"])
    if folder is not None:
        note += f"\nthe whole grid is kept in {keep(f'{NAME}_grid', grid + more, folder)}"
        note += f"\npicture: {draw(chosen, TARGET, folder / 'celgc_speedup.png')}"
    met = {
        f"I = {period}: n = {BAR_NODES} takes {times} times fewer steps than n = 1, at least {LEAST_SPEEDUP:g}": (
            times >= LEAST_SPEEDUP
        )
        for period, times in speedups(chosen).items()
    }
    figures = {f"speedup_I{period}": times for period, times in speedups(chosen).items()}
    figures |= {f"speedup_by_first_I{period}": times for period, times in speedups(by_first).items()}
    finish(NAME, rows, figures=figures, met=met, folder=folder, note=note)


if __name__ == "__main__":
    main()
