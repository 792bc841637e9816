"""Curves over seeds: the median loss and its range at every place where some seed recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flockstep.compare.folder import Outcome, Record, Results

AXES = ("seconds", "bytes", "samples")

# More places than pixels cannot be seen.
_PLACES = 1000

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One strategy's losses along one axis."""

    x: Numbers
    middle: Numbers
    """The median over the seeds that are there."""
    low: Numbers
    high: Numbers


def curves(results: Results, axis: str) -> list[Curve]:
    """A curve per strategy."""
    return [curve(outcomes, results.plan, axis) for outcomes in results.runs]


def curve(outcomes: Sequence[Outcome], plan: Record, axis: str) -> Curve:
    """The seeds' curves laid over each other, each a straight line between its rows.

    A run that is over keeps its last loss; one that was ended early is not there any more.
    """
    runs = [(*points(outcome, plan, axis), outcome.failure is None) for outcome in outcomes]
    places = _thinned(np.unique(np.concatenate([x for x, _, _ in runs]))) if runs else np.empty(0)
    losses = np.full((len(runs), len(places)), np.nan)
    for line, (x, loss, whole) in zip(losses, runs, strict=True):
        if len(x):
            line[:] = np.interp(places, x, loss, left=np.nan, right=loss[-1] if whole else np.nan)
    there = ~np.isnan(losses).all(axis=0)
    losses = losses[:, there]
    if not losses.size:
        return Curve(*[np.empty(0)] * 4)
    low, middle, high = np.nanmin(losses, axis=0), np.nanmedian(losses, axis=0), np.nanmax(losses, axis=0)
    return Curve(places[there], middle, low, high)


def points(outcome: Outcome, plan: Record, axis: str) -> tuple[Numbers, Numbers]:
    """One run's finite losses in order of an axis; of several at one place, the last."""
    found: dict[float, float] = {}
    for row in outcome.trace.rows:
        place = row.step * plan.samples_per_step if axis == "samples" else getattr(row, axis)
        if np.isfinite(row.loss):
            found[float(place)] = row.loss
    x = np.array(sorted(found), dtype=np.float64)
    return x, np.array([found[place] for place in x.tolist()], dtype=np.float64)


def _thinned(places: Numbers) -> Numbers:
    """As many as can be seen, evenly chosen, the first and the last among them."""
    if len(places) <= _PLACES:
        return places
    return places[np.linspace(0, len(places) - 1, _PLACES).round().astype(np.int64)]
