"""SClip-EF against four others on 20 quadratics that pull apart, under noise that has a mean and hardly more.

    f_i(x) = 1/2 (x - b_i)'A_i (x - b_i),   A_i a random rotation of diag(1 ... 5),   b_i ~ 3 N(0, I),   10 coordinates

Methods: SClip-EF; the same without error feedback; a clip of the norm at 5; at 5 (t+1)^(2/5); no clip. Noises: the
paper's log-tail density, Student-t(1.5), alpha-stable(1.3). Graphs: complete and ring. An error is the mean over
nodes of ||x_i - x*||^2; all seeds of a case run at once, as one matrix. See README.md beside this file.

Bars, for log-tail noise, complete graph and ring each for itself: constant clip above .1 at the end with every seed;
SClip-EF below 1e-3 at t = 1e4 with every seed; slope of SClip-EF's mean error at or below -0.4 from t = 1e3 to 1e5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Progress, arguments, finish, keep
from experiments.sclip_quadratic.cases import (
    CONSTANT,
    GRAPHS,
    MAIN,
    PLAIN,
    SCLIP,
    Case,
    feedback_cases,
    main_cases,
    other_problems,
)
from experiments.sclip_quadratic.picture import draw_feedback, draw_main
from experiments.sclip_quadratic.runs import Result, measure

NAME = "experiments.sclip_quadratic"
GIVEN = {
    SCLIP: {1_000: 0.0017, 10_000: 1.2e-4, 100_000: 1.5e-5},
    CONSTANT: {1_000: 0.142, 10_000: 0.147, 100_000: 0.149},
    PLAIN: {1_000: 1.1e-3, 10_000: 9.9e-4, 100_000: 2.4e-3},
}
"""Mean errors of an earlier run of ours, given with the description of the algorithm; log-tail noise, complete."""
FLOOR, REACHED, SLOPE = 0.1, 1e-3, -0.4


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is run."""

    seeds: int
    marks: tuple[int, int, int]
    """Moments of the table; a run ends at the last."""
    every: int
    problems: int
    """How many other problems are looked at, up to the middle mark."""


FULL = Plan(seeds=10, marks=(1_000, 10_000, 100_000), every=10, problems=10)
QUICK = Plan(seeds=2, marks=(10, 30, 60), every=10, problems=1)


def row(result: Result, marks: Sequence[int]) -> dict[str, Any]:
    """A case as it is kept: the mean over seeds, the least and the most."""
    case, begin, end = result.case, marks[0], marks[-1]
    told: dict[str, Any] = {"setting": case.setting, "graph": case.graph, "method": case.method}
    for mark in marks:
        told[f"t={mark}"] = short(result.at(mark).mean())
        told[f"least {mark}"] = short(result.at(mark).min())
        told[f"most {mark}"] = short(result.at(mark).max())
    return told | {
        "average model at end": short(result.averages[-1].mean()),
        "slope": round(result.slope(begin, end), 3),
        "seeds": result.errors.shape[1],
    }


def told_row(result: Result, marks: Sequence[int]) -> dict[str, Any]:
    """A case as people read it."""
    kept = row(result, marks)
    errors = {
        f"t = {mark}": f"{kept[f't={mark}']:.3g} ({kept[f'least {mark}']:.2g} to {kept[f'most {mark}']:.2g})"
        for mark in marks
    }
    return {name: kept[name] for name in ("setting", "graph", "method")} | errors | {"slope": kept["slope"]}


def curve(result: Result) -> list[dict[str, Any]]:
    """The same, moment by moment."""
    case = result.case
    return [
        {
            "setting": case.setting,
            "graph": case.graph,
            "method": case.method,
            "t": step,
            "mean": short(errors.mean()),
            "least": short(errors.min()),
            "most": short(errors.max()),
            "average model": short(averages.mean()),
        }
        for step, errors, averages in zip(result.steps, result.errors, result.averages, strict=True)
    ]


def short(number: float) -> float:
    """Four figures."""
    return float(f"{number:.4g}")


def bars(results: Sequence[Result], marks: tuple[int, int, int]) -> tuple[dict[str, bool], dict[str, float]]:
    """What was asked for, and the figures it was judged by."""
    met: dict[str, bool] = {}
    figures: dict[str, float] = {}
    found = {(r.case.graph, r.case.method): r for r in results if r.case.setting == MAIN}
    begin, middle, end = marks
    for graph in GRAPHS:
        floor = short(found[graph, CONSTANT].at(end).min())
        most = short(found[graph, SCLIP].at(middle).max())
        slope = round(found[graph, SCLIP].slope(begin, end), 3)
        met |= {
            f"{graph}: constant clip at t = {end}, every seed: {floor} and more, above {FLOOR}": floor > FLOOR,
            f"{graph}: SClip-EF at t = {middle}, every seed: {most} and less, below {REACHED}": most < REACHED,
            f"{graph}: slope of SClip-EF from {begin} to {end}: {slope}, at most {SLOPE}": slope <= SLOPE,
        }
        figures |= {f"floor_{graph}": floor, f"sclip_{graph}": most, f"slope_{graph}": slope}
    return met, figures


def problems_told(results: Sequence[Result]) -> str:
    """How much the errors depend on the problem."""
    told = []
    for method in (SCLIP, CONSTANT):
        ends = sorted(short(result.errors[-1].mean()) for result in results if result.case.method == method)
        told.append(f"{method} {ends[0]} to {ends[-1]}")
    return f"{len(results) // 2} problems at t = {results[0].steps[-1]}: " + ", ".join(told)


def main() -> None:
    """Run, then tell."""
    options = arguments(NAME, __doc__ or "").parse_args()
    torch.set_num_threads(1)
    plan = QUICK if options.quick else FULL
    folder = options.out or (None if options.quick else Path(__file__).parent)
    others = other_problems(range(plan.problems))
    cases = [main_cases(), feedback_cases(), others]
    progress = Progress(sum(map(len, cases)))

    def run(case: Case, marks: Sequence[int]) -> Result:
        progress(f"{case.setting}, {case.graph}, {case.method}, t to {marks[-1]}")
        return measure(case, seeds=plan.seeds, every=plan.every, marks=marks)

    # The short ones first.
    problems = [run(case, plan.marks[:2]) for case in others]
    compared, feedback = ([run(case, plan.marks) for case in part] for part in cases[:2])
    note = problems_told(problems)
    if folder is not None:
        rows = [row(result, plan.marks) for result in [*compared, *feedback]]
        points = [point for result in [*compared, *feedback] for point in curve(result)]
        note += f"\nrows kept in {keep(NAME, rows, folder)}"
        note += f"\nproblems kept in {keep(f'{NAME}_problems', [row(p, plan.marks[:2]) for p in problems], folder)}"
        note += f"\ncurves kept in {keep(f'{NAME}_curves', points, folder)}"
        note += f"\npicture: {draw_main(compared, GIVEN, folder / 'sclip_quadratic.png')}"
        note += f"\npicture: {draw_feedback(feedback, folder / 'feedback.png')}"
    met, figures = bars(compared, plan.marks)
    told = [told_row(result, plan.marks) for result in [*compared, *feedback]]
    finish(NAME, told, figures=figures, met=met, folder=None, note=note)


if __name__ == "__main__":
    main()
