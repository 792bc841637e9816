"""The report's picture: loss against seconds, bytes and samples, with bands over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flockstep import pages
from flockstep.compare.folder import Results
from flockstep.compare.report import words
from flockstep.compare.report.curves import AXES, Curve, curves

_MARKERS = "osD^Xpv*"


def titles(results: Results) -> dict[str, str]:
    """What to write at each axis."""
    kind = "seconds" if results.plan.real else "virtual seconds"
    return {"seconds": kind, "bytes": "bytes sent per node", "samples": f"{results.plan.samples}, all nodes"}


def log_losses(found: list[Curve]) -> bool:
    """Whether losses are best seen in powers of ten: all above zero, and the largest ten times the least."""
    lows = [float(curve.low.min()) for curve in found if len(curve.x)]
    highs = [float(curve.high.max()) for curve in found if len(curve.x)]
    return bool(lows) and min(lows) > 0 and max(highs) >= 10 * min(lows)


def draw(results: Results, target: float | None, path: Path) -> Path:
    """Three panels side by side."""
    # The object interface draws without a display and leaves the user's own pyplot figures alone.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5.2), layout="constrained")
    panels: Any = figure.subplots(1, len(AXES))
    for panel, axis in zip(panels, AXES, strict=True):
        _panel(panel, results, axis, target)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, max(1, len(labels))), fontsize=9)
    # A dollar sign would begin a formula.
    text = f"{words.title(results.plan)}\n{words.cluster(results.plan)}".replace("$", r"\$")
    figure.suptitle(text, fontsize=11, wrap=True)
    figure.savefig(path, dpi=130)
    return path


def _panel(panel: Any, results: Results, axis: str, target: float | None) -> None:
    from matplotlib.ticker import EngFormatter

    found, palette = curves(results, axis), pages.colors()
    for index, (curve, label) in enumerate(zip(found, results.plan.labels, strict=True)):
        shade, marker = palette[index % len(palette)], _MARKERS[index % len(_MARKERS)]
        panel.fill_between(curve.x, curve.low, curve.high, color=shade, alpha=0.18, linewidth=0)
        every = max(1, len(curve.x) // 20)
        name = label.replace("$", r"\$")
        panel.plot(
            curve.x, curve.middle, color=shade, marker=marker, markersize=4, markevery=every, label=name.lstrip("_")
        )
    if target is not None:
        panel.axhline(target, color="#5a6475", linestyle=":", linewidth=1.2)
    if log_losses(found):
        panel.set_yscale("log")
    panel.xaxis.set_major_formatter(EngFormatter(unit={"seconds": "s", "bytes": "B", "samples": ""}[axis]))
    panel.set_xlabel(titles(results)[axis])
    panel.set_ylabel("loss")
    panel.grid(alpha=0.3)
