"""Accuracy against passes and against virtual time, for each number of nodes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Figures
from experiments.swarm_cifar10.settings import METHODS, SGD

_COLORS = [f"C{k}" for k in range(10)] + ["black", "gold", "lightgreen", "navy", "salmon"]
"""One for each method, in all panels: the bars' names are the legend."""


def draw(rows: Sequence[Figures], curves: Sequence[Figures], path: Path, title: str) -> Path:
    """A row of panels per number of nodes; the shorter runs as curves, the ends of both lengths as bars."""
    from matplotlib.figure import Figure

    counts = sorted({row["nodes"] for row in rows if row["method"] != SGD})
    figure = Figure(figsize=(15, 4.5 * len(counts)), layout="constrained")
    panels: Any = figure.subplots(len(counts), 3, squeeze=False)
    for (by_passes, by_time, ends), nodes in zip(panels, counts, strict=True):
        short = [p for p in curves if p["nodes"] in (1, nodes) and p["passes"] == min(q["passes"] for q in curves)]
        for color, method in enumerate(METHODS):
            for panel, axis in ((by_passes, "passed"), (by_time, "virtual s")):
                if points := _mean_curve([p for p in short if p["method"] == method], axis):
                    panel.plot(*zip(*points, strict=True), color=_COLORS[color], lw=1.4)
        by_passes.set(xlabel="passes over the data, all nodes together", title=f"{nodes} nodes")
        by_time.set(xlabel="virtual seconds", xscale="log")
        _draw_ends(ends, rows, nodes)
        for panel in (by_passes, by_time):
            panel.set_ylabel("test accuracy of the average model, %")
            panel.set_ylim(bottom=40)
            panel.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    return path


def _mean_curve(points: list[Figures], axis: str) -> list[tuple[float, float]]:
    """Over seeds: the k-th point of each."""
    seeds = sorted({point["seed"] for point in points})
    each = [[p for p in points if p["seed"] == seed] for seed in seeds]
    return [
        (statistics.fmean(p[axis] for p in ks), statistics.fmean(p["accuracy"] for p in ks))
        for ks in zip(*each, strict=False)
    ]


def _draw_ends(panel: Any, rows: Sequence[Figures], nodes: int) -> None:
    mine = [row for row in rows if row["nodes"] in (1, nodes)]
    # There may be one length only.
    for shift, passes in zip((-0.2, 0.2), sorted({row["passes"] for row in mine}), strict=False):
        for place, method in enumerate(METHODS):
            found = [row["accuracy"] for row in mine if row["method"] == method and row["passes"] == passes]
            if not found:
                continue
            mean = statistics.fmean(found)
            panel.barh(place + shift, mean, 0.36, color=_COLORS[place], alpha=1.0 if shift < 0 else 0.55)
            panel.text(mean, place + shift, f" {mean:.1f} ({passes:g} passes)", va="center", fontsize=7)
    panel.set_yticks(range(len(METHODS)), list(METHODS), fontsize=8)
    panel.invert_yaxis()
    low = min(row["accuracy"] for row in mine)
    panel.set_xlim(max(0.0, low - 5), 100 if low > 90 else max(row["accuracy"] for row in mine) + 9)
    panel.set_xlabel("test accuracy at the end, %")
