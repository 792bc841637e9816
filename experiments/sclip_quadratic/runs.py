"""One case with all its seeds, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import flockstep as fs
from experiments.sclip_quadratic.cases import NODES, Case

POINTS = 60
"""Moments kept of a curve, at most."""


@dataclass(frozen=True)
class Result:
    """The squared errors of one case."""

    case: Case
    steps: list[int]
    errors: NDArray[np.float64]
    """(moments, seeds): the mean over nodes of ||x_i - x*||^2."""
    averages: NDArray[np.float64]
    """The same of the average model."""

    def at(self, step: int) -> NDArray[np.float64]:
        """The error of each seed at a moment."""
        found: NDArray[np.float64] = self.errors[self.steps.index(step)]
        return found

    def slope(self, begin: int, end: int) -> float:
        """Of the mean over seeds, by least squares through the logarithms of what is kept from ``begin`` to ``end``."""
        kept = [k for k, step in enumerate(self.steps) if begin <= step <= end]
        t = np.log([self.steps[k] for k in kept])
        return float(np.polyfit(t, np.log(self.errors[kept].mean(axis=1)), 1)[0])


def moments(every: int, marks: Sequence[int]) -> list[int]:
    """Evenly spread in the logarithm over what is recorded up to the last mark, and the marks themselves."""
    places = np.geomspace(every, marks[-1], POINTS - len(marks))
    return sorted({every * round(place / every) for place in places} | set(marks))


def measure(case: Case, *, seeds: int, every: int, marks: Sequence[int]) -> Result:
    """Run all seeds at once."""
    traces = fs.simulate_seeds(
        case.strategy,
        case.problem,
        seeds=range(seeds),
        nodes=NODES,
        steps=marks[-1],
        optimizer=case.optimizer,
        record_every=every,
        engine="stacked",
    )
    steps = moments(every, marks)
    rows = [[trace.rows[step // every] for trace in traces] for step in steps]
    averages = np.array([[row.loss for row in line] for line in rows])
    return Result(case, steps, averages + [[row.spread for row in line] for line in rows], averages)
