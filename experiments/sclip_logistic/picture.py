"""Test loss against rounds, each method at its best learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.sclip_logistic.methods import METHODS
from experiments.sclip_logistic.runs import Result
from experiments.sclip_quadratic.cases import SCLIP

COLOURS = dict(
    zip(METHODS, ("tab:blue", "black", "tab:cyan", "tab:red", "tab:green", "tab:orange", "tab:purple"), strict=True)
)


def draw(results: Sequence[Result], least: Mapping[str, float], path: Path) -> Path:
    """A panel per data set; a line is the mean over seeds, its band goes from the least to the most."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6 * len(least), 5.0), layout="constrained")
    panels: Any = figure.subplots(1, len(least), squeeze=False)[0]
    for panel, (data, limit) in zip(panels, least.items(), strict=True):
        mine = [result for result in results if result.data == data]
        for result in mine:
            _draw(panel, result)
        top = 1.15 * max(result.losses[-1].mean() for result in mine)
        panel.axhline(limit, color="grey", ls=":", label="without noise, at the end of time")
        panel.set(title=data, xlabel="rounds", xscale="log", ylim=(0.9 * limit, top))
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
        panel.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("test loss of the average model")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _draw(panel: Any, result: Result) -> None:
    colour, steps, losses = COLOURS[result.method], result.steps[1:], result.losses[1:]
    # Broad, as another may lie on top of it.
    look: Any = {"lw": 3.5, "alpha": 0.6} if result.method == SCLIP else {"lw": 1.3, "ls": (0, (4, 1.5))}
    panel.plot(steps, losses.mean(axis=1), color=colour, label=f"{result.method}, rate {result.rate:g}", **look)
    panel.fill_between(steps, losses.min(axis=1), losses.max(axis=1), color=colour, alpha=0.15, lw=0)
