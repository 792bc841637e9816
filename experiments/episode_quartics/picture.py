"""The picture: heights along the rounds, one panel per H."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.episode_quartics.__main__ import Result

WINDOW = 10
COLOURS = {"CELGC": "tab:red", "EPISODE": "tab:blue"}


def draw(results: Mapping[tuple[str, int], Result], given: Mapping[tuple[str, int], float], path: Path) -> Path:
    """One curve per seed; a dotted line at the height given beforehand."""
    from matplotlib.figure import Figure

    hs = sorted({H for _, H in results})
    figure = Figure(figsize=(3.1 * len(hs), 3.6), layout="constrained")
    panels: Any = figure.subplots(1, len(hs), sharey=True, squeeze=False)[0]
    for panel, H in zip(panels, hs, strict=True):
        for strategy, colour in COLOURS.items():
            for curve in results[strategy, H].curves:
                panel.loglog(range(1, len(curve) + 1), smoothed(curve), color=colour, alpha=0.6, lw=1)
            if (strategy, H) in given:
                panel.axhline(given[strategy, H], color="black", ls=":", lw=1.2)
        panel.set_title(f"H = {H}")
        panel.set_xlabel("rounds, the start being 1")
        panel.grid(alpha=0.3)
    # Empty curves, because those drawn are too faint for a legend.
    for strategy, colour in COLOURS.items():
        panels[0].plot([], [], color=colour, label=strategy)
    panels[0].plot([], [], color="black", ls=":", label="given beforehand")
    panels[0].legend()
    panels[0].set_ylabel(f"f - f* of the average model,\nmean of up to {WINDOW} rounds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def smoothed(curve: Sequence[float]) -> list[float]:
    """Each height with those just before it: single rounds are too noisy to see one line behind another.

    The window grows from nothing, so that the fall at the start is not hidden.
    """
    ends = range(1, len(curve) + 1)
    return [statistics.mean(curve[end - min(WINDOW, 1 + end // 4) : end]) for end in ends]
