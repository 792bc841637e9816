"""From single runs to the lines of a table: means over seeds, at the best rate, beside one node alone."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.defaults.runs import ALONE, TOGETHER

SIXTEENTH = 1 / 16
Found = list[dict[str, Any]]


def told(found: Found) -> Found:
    """A line per task, number of nodes and strategy; of several rates, the best."""
    means: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in found:
        key = row["task"], row["strategy"], row["nodes"]
        same = [other for other in found if (other["task"], other["strategy"], other["nodes"]) == key]
        if key not in means:
            means[key] = min((_mean(same, factor) for factor in {r["factor"] for r in same}), key=_by_loss)
    return [_line(key, mean, means) for key, mean in means.items() if key[1] != ALONE]


def _mean(rows: Found, factor: float) -> dict[str, Any]:
    mine = [row for row in rows if row["factor"] == factor]
    losses = [row["loss"] for row in mine]
    return {
        "loss": statistics.fmean(losses),
        "deviation": statistics.stdev(losses) if len(losses) > 1 and math.isfinite(sum(losses)) else 0.0,
        "worst": max(row["worst"] for row in mine),
        "spread": statistics.fmean(row["spread"] for row in mine),
        "kB": statistics.fmean(row["kB"] for row in mine),
        "factor": factor,
        "failed": next((row["failed"] for row in mine if row["failed"]), ""),
    }


def _by_loss(mean: dict[str, Any]) -> float:
    return float(mean["loss"]) if math.isfinite(mean["loss"]) else math.inf


def _line(key: tuple[str, str, int], mean: dict[str, Any], means: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    task, strategy, nodes = key
    alone, together = means[task, ALONE, 1], means[task, TOGETHER, nodes]
    gain = alone["loss"] - together["loss"]
    return {
        "task": task,
        "nodes": nodes,
        "strategy": strategy,
        "loss": round(mean["loss"], 4),
        "+-": round(mean["deviation"], 4),
        "alone": round(alone["loss"], 4),
        "from DataParallel": round(mean["loss"] - together["loss"], 4),
        "kept": round((alone["loss"] - mean["loss"]) / gain, 2) if gain > 0 else math.nan,
        "worst node": round(mean["worst"], 4),
        "spread": float(f"{mean['spread']:.3g}"),
        "bytes": round(mean["kB"] / together["kB"], 4) if together["kB"] else math.nan,
        "rate": mean["factor"],
        "failed": mean["failed"],
    }
