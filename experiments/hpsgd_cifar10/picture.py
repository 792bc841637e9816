"""Accuracy against virtual time for each link, and where merges swing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Figures
from experiments.hpsgd_cifar10.settings import METHODS
from experiments.hpsgd_cifar10.stability import RATES, STEPS, strength


def draw_accuracy(curves: Sequence[Figures], links: Sequence[str], path: Path, title: str) -> Path:
    """A panel per link."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    panels: Any = figure.subplots(1, len(links), sharey=True, squeeze=False)[0]
    for panel, link in zip(panels, links, strict=True):
        for color, method in enumerate(METHODS):
            points = [p for p in curves if p["link"] == link and p["method"] == method]
            panel.plot(
                [p["virtual s"] for p in points], [p["accuracy"] for p in points], f"C{color}o-", ms=3, label=method
            )
        panel.set(title=link, xlabel="virtual seconds")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy of the average model, %")
    panels[-1].legend(fontsize=8, loc="lower right")
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    return path


def draw_stability(rows: Sequence[Figures], path: Path) -> Path:
    """k against the rate: what was seen, and the formula's lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    panel: Any = figure.subplots()
    for swings, color, label in ((0, "C0", "global model goes straight"), (1, "C3", "global model swings")):
        here = [row for row in rows if row["swings"] == swings]
        panel.scatter([row["rate"] for row in here], [row["k"] for row in here], c=color, s=36, label=label)
    rates, ks = np.meshgrid(np.geomspace(RATES[0], RATES[-1], 200), np.geomspace(STEPS[0], STEPS[-1], 200))
    panel.contour(rates, ks, strength(ks, rates), levels=[0.25], colors=["black"])
    panel.plot([], [], "k-", label="the formula: outer_lr c = 1/4")
    panel.set(xscale="log", yscale="log", xlabel="learning rate times curvature", ylabel="k, steps per period")
    panel.set_title("HPSGD on a quadratic: when a merge that is one period late swings")
    panel.legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=130)
    return path
