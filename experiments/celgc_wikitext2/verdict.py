"""What the rows say: the best rate of each method, side by side, and the two bars."""

from __future__ import annotations

import math
from statistics import geometric_mean, median
from typing import Any

from experiments.celgc_wikitext2.record import Record
from experiments.celgc_wikitext2.settings import BASELINE, LONGEST, METHODS

Figures = dict[str, Any]

PERPLEXITY_BAR = 1.03
# 16 but for a round left open at the end.
BYTES_BAR = 15.9


def best(record: Record) -> list[Figures]:
    """For each method, its run with the lowest perplexity."""
    chosen = []
    for method in METHODS:
        runs = [run for run in record.runs if run["method"] == method]
        if runs:
            chosen.append(min(runs, key=lambda run: float(run["perplexity"])))
    return chosen


def side_by_side(record: Record) -> list[Figures]:
    """One row per method at its best rate, with its ratios to the baseline."""
    chosen = best(record)
    base = next(run for run in chosen if run["method"] == BASELINE)
    level = record.curve(base)[-1]["perplexity"]
    return [
        {
            "method": run["method"],
            "rate": run["rate"],
            "perplexity": run["perplexity"],
            "to baseline": run["perplexity"] / base["perplexity"],
            "of last records": _of_last_records(record, run) / _of_last_records(record, base),
            "MB sent": run["bytes_per_node"] / 1e6,
            "fewer bytes": base["bytes_per_node"] / run["bytes_per_node"],
            "clipped": run["clipped_share"],
            "largest spread": run["largest_spread"],
            "median spread": median(point["spread"] for point in record.curve(run)[1:-1]),
            "spread/norm": run["spread_share_of_norm"],
            "virtual s": run["virtual_s"],
            "to level": _seconds_to(level, record.curve(run)),
            "to level x1.03": _seconds_to(level * PERPLEXITY_BAR, record.curve(run)),
        }
        for run in chosen
    ]


def grid(record: Record) -> list[Figures]:
    """Every run, by method and rate, with its ratio to the baseline at the same rate."""
    at_rate = {run["rate"]: run["perplexity"] for run in record.runs if run["method"] == BASELINE}
    order = list(METHODS)
    names = ("method", "rate", "gamma", "perplexity", "clipped_share", "largest_spread", "skipped", "wall_s", "note")
    return [
        {name: run[name] for name in names if name in run}
        | {"to baseline at this rate": run["perplexity"] / at_rate.get(run["rate"], math.nan)}
        for run in sorted(record.runs, key=lambda run: (order.index(run["method"]), run["rate"]))
    ]


def judge(rows: list[Figures]) -> dict[str, bool]:
    """The two bars, each by itself."""
    longest = next((row for row in rows if row["method"] == LONGEST), {"to baseline": float("inf"), "fewer bytes": 0.0})
    return {
        f"perplexity of I=16 at most {PERPLEXITY_BAR} x the baseline's": longest["to baseline"] <= PERPLEXITY_BAR,
        f"I=16 sends at least {BYTES_BAR} x fewer bytes": longest["fewer bytes"] >= BYTES_BAR,
    }


def _of_last_records(record: Record, run: Figures) -> float:
    # One model at a constant rate is a snapshot of the noise: the geometric mean of a few says how far to trust it.
    return geometric_mean(point["perplexity"] for point in record.curve(run)[-5:])


def _seconds_to(perplexity: float, curve: list[Figures]) -> float | str:
    reached = (point["virtual_s"] for point in curve if point["perplexity"] <= perplexity)
    return next(reached, "never")
