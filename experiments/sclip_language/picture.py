"""Validation loss against steps, with and without noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.sclip_language.__main__ import Run


def draw(runs: Mapping[str, Sequence[Run]], path: Path, start: float) -> None:
    """One panel with the noise and one without; a method's seeds as a band around their median."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True)
    for panel, noisy in zip(panels, (True, False), strict=True):
        for method, all_runs in runs.items():
            curves = [run.curve for run in all_runs if run.noisy is noisy and math.isfinite(run.loss)]
            if not curves:
                continue
            steps = [step for step, _ in curves[0]]
            losses = [[curve[k][1] for curve in curves] for k in range(len(steps))]
            line = panel.plot(steps, [statistics.median(seeds) for seeds in losses], marker=".", label=method)[0]
            panel.fill_between(
                steps, [min(s) for s in losses], [max(s) for s in losses], color=line.get_color(), alpha=0.2
            )
        panel.set_title("Student-t(1.5) noise on every coordinate" if noisy else "no noise", fontsize=10)
        panel.set_xlabel("steps per node")
        panel.grid(alpha=0.3)
    panels[0].set_ylim(1.5, start + 0.5)
    panels[0].set_ylabel("validation loss, nats per character")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=130)
