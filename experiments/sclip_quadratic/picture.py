"""Errors against time, on logarithmic axes: a line is the mean over seeds, its band goes from the least to the most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.sclip_quadratic.cases import COMPLETE, GRAPHS, MAIN, METHODS, SCLIP
from experiments.sclip_quadratic.runs import Result

COLOURS = dict(zip(METHODS, ("tab:blue", "black", "tab:red", "tab:green", "tab:orange"), strict=True))
Given = Mapping[str, Mapping[int, float]]


def draw_main(results: Sequence[Result], given: Given, path: Path) -> Path:
    """A row of panels per noise, a column per graph; crosses where figures were given beforehand."""
    noises = list(dict.fromkeys(result.case.setting for result in results))
    figure, panels = _figure(len(noises), len(GRAPHS))
    for line, noise in zip(panels, noises, strict=True):
        for panel, graph in zip(line, GRAPHS, strict=True):
            mine = [result for result in results if (result.case.setting, result.case.graph) == (noise, graph)]
            for result in mine:
                _draw(panel, result)
                if result.case.method == SCLIP and graph != COMPLETE:
                    mean = result.averages.mean(axis=1)
                    panel.loglog(result.steps, mean, ":", color=COLOURS[SCLIP], lw=1.3, label="its average model")
            panel.set_title(f"{noise}, {graph}", fontsize=10)
            panel.set_ylim(1e-6, 1e3)
    for method, points in given.items():
        panels[noises.index(MAIN)][0].plot(*zip(*points.items(), strict=True), "x", color=COLOURS[method], ms=7)
    panels[0][0].plot([], [], "x", color="grey", label="given beforehand")
    return _save(figure, panels, path)


def draw_feedback(results: Sequence[Result], path: Path) -> Path:
    """With and without error feedback, a panel per setting."""
    settings = list(dict.fromkeys(result.case.setting for result in results))
    figure, panels = _figure(1, len(settings))
    for panel, setting in zip(panels[0], settings, strict=True):
        for result in results:
            if result.case.setting == setting:
                _draw(panel, result)
        panel.set_title(setting, fontsize=10)
    return _save(figure, panels, path)


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 3.3 * rows + 0.4), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _draw(panel: Any, result: Result) -> None:
    colour, errors = COLOURS[result.case.method], result.errors
    # Broad, as another may lie on top of it.
    look: Any = {"lw": 3.5, "alpha": 0.6} if result.case.method == SCLIP else {"lw": 1.3, "ls": (0, (4, 1.5))}
    panel.loglog(result.steps, errors.mean(axis=1), color=colour, label=result.case.method, **look)
    panel.fill_between(result.steps, errors.min(axis=1), errors.max(axis=1), color=colour, alpha=0.15, lw=0)


def _save(figure: Any, panels: Any, path: Path) -> Path:
    for line in panels:
        line[0].set_ylabel("mean over nodes of ||x - x*||²")
        for panel in line:
            panel.grid(alpha=0.3)
            panel.set_xlabel("steps t")
    panels[0][-1].legend(fontsize=7)
    panels[0][0].legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
