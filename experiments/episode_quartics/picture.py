"""The picture: heights along the rounds, one panel per H."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.episode_quartics.__main__ import Result

LEAST_SHOWN = 1e-6
COLOURS = {"CELGC": "tab:red", "EPISODE": "tab:blue"}


def draw(results: Mapping[tuple[str, int], Result], given: Mapping[tuple[str, int], float], path: Path) -> Path:
    """Every seed's curve; a dotted line at the height given beforehand."""
    from matplotlib.figure import Figure

    hs = sorted({H for _, H in results})
    figure = Figure(figsize=(3.1 * len(hs), 3.6), layout="constrained")
    panels: Any = figure.subplots(1, len(hs), sharey=True, squeeze=False)[0]
    for panel, H in zip(panels, hs, strict=True):
        for strategy, colour in COLOURS.items():
            result = results[strategy, H]
            for index, curve in enumerate(result.curves):
                shown = [max(height, LEAST_SHOWN) for height in curve]
                panel.plot(shown, color=colour, alpha=0.35, lw=0.7, label="" if index else strategy)
            if (strategy, H) in given:
                panel.axhline(given[strategy, H], color="black", ls=":", lw=1.2)
        panel.set_yscale("log")
        panel.set_title(f"H = {H}")
        panel.set_xlabel("rounds of 8 steps")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("f - f* of the average model")
    panels[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
