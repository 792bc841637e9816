"""The curves of each method at its best rate, and the whole grid, in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.celgc_wikitext2.record import Record
from experiments.celgc_wikitext2.settings import METHODS
from experiments.celgc_wikitext2.verdict import best

_AXES = {
    "epochs": ("epochs of data, all nodes together", "linear"),
    "bytes_per_node": ("bytes sent per node", "log"),
    "virtual_s": ("virtual seconds", "log"),
}


def draw(record: Record, path: Path, title: str) -> Path:
    """Validation perplexity against data, bytes and virtual time, and against the learning rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    panels: Any = figure.subplots(2, 2).flat
    for panel, axis in zip(panels, _AXES, strict=False):
        _draw_curves(panel, record, axis)
    _draw_grid(panels[3], record)
    for panel in panels:
        panel.set_ylabel("validation perplexity")
        panel.grid(alpha=0.3, which="both")
        panel.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    return path


def _plain(value: float, _: Any) -> str:
    # A logarithmic axis has too many minor ticks to name them all.
    return f"{value:g}" if f"{value:e}"[0] in "1246" else ""


def _draw_curves(panel: Any, record: Record, axis: str) -> None:
    for run in best(record):
        # The start has no place on a logarithmic axis.
        curve = [point for point in record.curve(run) if point["step"] > 0]
        label = f"{run['method']}, rate {run['rate']:g}"
        panel.plot([p[axis] for p in curve], [p["perplexity"] for p in curve], marker=".", label=label)
    label, scale = _AXES[axis]
    panel.set_xlabel(label)
    panel.set_xscale(scale)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(_plain)
    panel.yaxis.set_minor_formatter(_plain)


def _draw_grid(panel: Any, record: Record) -> None:
    for method in METHODS:
        runs = sorted((run for run in record.runs if run["method"] == method), key=lambda run: float(run["rate"]))
        panel.plot([run["rate"] for run in runs], [run["perplexity"] for run in runs], marker="o", label=method)
    rates = sorted({run["rate"] for run in record.runs})
    panel.set_xlabel("learning rate: the whole grid")
    panel.set_xscale("log")
    panel.set_xticks(rates, labels=[f"{rate:g}" for rate in rates])
    panel.set_xticks([], minor=True)
