"""SClip-EF against others on logistic regression: 10 nodes on a ring, labels sorted, heavy-tailed noise.

Data: a9a and w8a, each node's rows nearly all of one label. Every gradient, on a batch of 32 rows, has Student-t(1.5)
noise on every coordinate, about as large as the gradient's own coordinates. Methods: SClip-EF; the same without error
feedback, and that once more with smaller first steps; a clip of the norm at 1; at 1 (t+1)^(2/5); no clip; GT-NSGDm.
Each takes the best learning rate of one grid, the same for all, by the training loss at the end, averaged over seeds.
Needs the data folder: set FLOCKSTEP_DATA to the folder that has libsvm in it. See README.md beside this file.

Bars, for each data set: at the end the mean test loss of SClip-EF is below that of plain SGD, and of the constant clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import Progress, arguments, finish, keep
from experiments.sclip_logistic.data import SOURCES, load
from experiments.sclip_logistic.methods import METHODS
from experiments.sclip_logistic.picture import draw
from experiments.sclip_logistic.runs import Result, best, measure
from experiments.sclip_quadratic.cases import CONSTANT, PLAIN, SCLIP

NAME = "experiments.sclip_logistic"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is run."""

    rates: tuple[float, ...]
    seeds: int
    rounds: int
    every: int


FULL = Plan(rates=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), seeds=3, rounds=2_000, every=40)
QUICK = Plan(rates=(3.0, 10.0), seeds=2, rounds=20, every=10)


def kept_row(result: Result, chosen: bool) -> dict[str, Any]:
    """One learning rate, as it is kept."""
    end = result.losses[-1]
    return {
        "data": result.data,
        "method": result.method,
        "learning rate": result.rate,
        "chosen": chosen,
        "training loss": short(result.score),
        "test loss": short(end.mean()),
        "least": short(end.min()),
        "most": short(end.max()),
        "test accuracy": round(float(np.mean(result.accuracies)), 4),
        "spread": short(result.spread),
        "seeds": len(end),
    }


def told_row(result: Result, rates: tuple[float, ...]) -> dict[str, Any]:
    """The chosen one, as people read it."""
    kept, tenth = kept_row(result, True), len(result.steps) // 10
    return {
        "data": result.data,
        "method": result.method,
        "learning rate": f"{result.rate:g}" + (" (edge of the grid)" if result.rate in (rates[0], rates[-1]) else ""),
        f"test loss at {result.steps[tenth]}": short(result.losses[tenth].mean()),
        f"at {result.steps[-1]}": f"{kept['test loss']:.4f} ({kept['least']:.4f} to {kept['most']:.4f})",
        "training loss": kept["training loss"],
        "test accuracy": kept["test accuracy"],
    }


def curve(result: Result) -> list[dict[str, Any]]:
    """The chosen one, moment by moment."""
    return [
        {
            "data": result.data,
            "method": result.method,
            "learning rate": result.rate,
            "round": step,
            "mean": short(losses.mean()),
            "least": short(losses.min()),
            "most": short(losses.max()),
        }
        for step, losses in zip(result.steps, result.losses, strict=True)
    ]


def short(number: float) -> float:
    """Four figures."""
    return float(f"{number:.4g}")


def bars(chosen: list[Result]) -> tuple[dict[str, bool], dict[str, float]]:
    """What one expects of SClip-EF, and the figures it was judged by."""
    ends = {(result.data, result.method): short(result.losses[-1].mean()) for result in chosen}
    met = {
        f"{data}: test loss of SClip-EF {ends[data, SCLIP]}, below that of {other} {ends[data, other]}": (
            ends[data, SCLIP] < ends[data, other]
        )
        for data in SOURCES
        for other in (PLAIN, CONSTANT)
    }
    return met, {f"{data}, {method}": end for (data, method), end in ends.items()}


def main() -> None:
    """Run every rate, choose, then tell."""
    options = arguments(NAME, __doc__ or "").parse_args()
    torch.set_num_threads(1)
    plan = QUICK if options.quick else FULL
    folder = options.out or (None if options.quick else Path(__file__).parent)
    problems = {data: load(data) for data in SOURCES}
    progress = Progress(len(problems) * len(METHODS) * len(plan.rates))
    grid: list[dict[str, Any]] = []
    chosen: list[Result] = []
    least, told = {}, []
    for data, problem in problems.items():
        for method in METHODS:
            tried = []
            for rate in plan.rates:
                progress(f"{data}, {method}, learning rate {rate:g}")
                tried.append(
                    measure(data, method, rate, problem, seeds=plan.seeds, rounds=plan.rounds, every=plan.every)
                )
            chosen.append(best(tried))
            grid += [kept_row(result, result is chosen[-1]) for result in tried]
        model = problem.least()
        least[data] = problem.loss(model)
        told.append(
            f"{data} without noise, at the end of time: test loss {least[data]:.4f},"
            f" training loss {problem.training_loss(model):.4f}, test accuracy {problem.test_accuracy(model):.4f}"
        )
    note = "\n".join(told)
    if folder is not None:
        points = [point for result in chosen for point in curve(result)]
        note += f"\nthe whole grid is kept in {keep(f'{NAME}_grid', grid, folder)}"
        note += f"\ncurves kept in {keep(f'{NAME}_curves', points, folder)}"
        note += f"\npicture: {draw(chosen, least, folder / 'sclip_logistic.png')}"
    met, figures = bars(chosen)
    rows = [told_row(result, plan.rates) for result in chosen]
    finish(NAME, rows, figures=figures, met=met, folder=None, note=note)


if __name__ == "__main__":
    main()
