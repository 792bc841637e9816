"""Steps to a fixed gradient norm of the average model against the number of nodes, for CELGC with I = 1 and I = 4.

The learning rate is chosen for each number of nodes from one grid, the same for all: the one with the smallest median
number of steps among those that reach the target with every seed. Whatever the number of nodes, a run may compute as
many gradients in total. See README.md beside this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
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
TARGET = 0.25
GRADIENTS = 8_000
LEAST_SPEEDUP = 6.0
BAR_NODES = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is tried."""

    nodes: Sequence[int]
    exponents: Sequence[int]
    seeds: int

    @property
    def rates(self) -> list[float]:
        """The one grid of learning rates."""
        return [2.0**exponent for exponent in self.exponents]


FULL = Plan(nodes=(1, 2, 4, 8, 16), exponents=range(-11, -3), seeds=5)
QUICK = Plan(nodes=(1, 8), exponents=range(-10, -5), seeds=2)


@cache
def trial(problem: Wells, plan: Plan, nodes: int, period: int, rate: float) -> Rate:
    """One learning rate, all seeds."""
    strategy = celgc(problem, period, rate)
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


def without_clip(problem: Wells, plan: Plan) -> list[Rate]:
    """Plain local SGD from the same start, one seed: which learning rates does it survive?"""
    limit = GRADIENTS // BAR_NODES
    plain = fs.LocalSGD(period=1)
    return [
        Rate(rate, [run(plain, problem, nodes=BAR_NODES, rate=rate, target=TARGET, limit=limit, seed=0)])
        for rate in plan.rates
    ]


def search(problem: Wells, plan: Plan) -> tuple[dict[tuple[int, int], Rate], list[dict[str, Any]]]:
    """Every learning rate for every period and number of nodes: the best ones, and all as rows."""
    progress = Progress(len(PERIODS) * len(plan.nodes) * len(plan.rates))
    chosen: dict[tuple[int, int], Rate] = {}
    rows = []
    for period in PERIODS:
        for nodes in plan.nodes:
            tried = []
            for rate in plan.rates:
                progress(f"I = {period}, n = {nodes}, learning rate {rate:.4g}")
                # One node has nobody to average with: its runs are the same for every period.
                tried.append(trial(problem, plan, nodes, period if nodes > 1 else 1, rate))
            fastest = best(tried)
            if fastest is not None:
                chosen[period, nodes] = fastest
            rows += [grid_row("CELGC", period, nodes, rate, rate is fastest) for rate in tried]
    return chosen, rows


def speedup(chosen: dict[tuple[int, int], Rate], period: int) -> float:
    """How many times fewer steps many nodes take than one; 0 where either never arrived."""
    one, many = (chosen.get((period, nodes)) for nodes in (1, BAR_NODES))
    return one.median / many.median if one and many and one.median and many.median else 0.0


def main() -> None:
    """Search, then tell."""
    options = arguments(NAME, __doc__ or "").parse_args()
    torch.set_num_threads(1)
    plan = QUICK if options.quick else FULL
    folder = options.out or (None if options.quick else Path(__file__).parent)
    problem = Wells()
    chosen, grid = search(problem, plan)
    plain = without_clip(problem, plan)
    grid += [grid_row("LocalSGD", 1, BAR_NODES, rate, False) for rate in plain]
    rows = [summary_row(problem, *key, rate, chosen.get((key[0], 1))) for key, rate in chosen.items()]
    lost = ", ".join(f"{rate.rate:.4g}" for rate in plain if rate.runs[0].diverged)
    note = f"without the clip (LocalSGD, I = 1, n = {BAR_NODES}) these learning rates diverge: {lost or 'none'}"
    if folder is not None:
        note += f"\nthe whole grid is kept in {keep(f'{NAME}_grid', grid, folder)}"
        note += f"\npicture: {draw(chosen, TARGET, folder / 'celgc_speedup.png')}"
    speedups = {period: round(speedup(chosen, period), 2) for period in PERIODS}
    met = {
        f"I = {period}: n = {BAR_NODES} takes {times} times fewer steps than n = 1, at least {LEAST_SPEEDUP:g}": (
            times >= LEAST_SPEEDUP
        )
        for period, times in speedups.items()
    }
    figures = {f"speedup_I{period}": times for period, times in speedups.items()}
    finish(NAME, rows, figures=figures, met=met, folder=folder, note=note)


if __name__ == "__main__":
    main()
