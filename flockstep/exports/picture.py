"""Loss curves of one run or several, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flockstep import check
from flockstep.trace import Trace

AXES = {"seconds": "seconds", "step": "steps per node", "bytes": "bytes sent per node"}


def plot(
    traces: Sequence[Trace],
    path: str | Path,
    against: Sequence[str] = ("seconds", "bytes"),
    *,
    labels: Sequence[str] = (),
    groups: Sequence[str] = (),
    title: str = "",
) -> Path:
    """Loss curves of several runs in one picture: a column of panels per quantity, a row per group of runs."""
    # The object interface draws without a display and leaves the user's own pyplot figures alone.
    from matplotlib.figure import Figure

    for axis in against:
        check.one_of("plot", "against", axis, AXES)
    rows: dict[str, list[int]] = {}
    for index in range(len(traces)):
        rows.setdefault(groups[index] if groups else "", []).append(index)
    figure = Figure(figsize=(5.5 * len(against), 3.6 * len(rows) + 0.6), layout="constrained")
    panels: Any = figure.subplots(len(rows), len(against), squeeze=False)
    for line, (group, members) in zip(panels, rows.items(), strict=True):
        names = [labels[index] if labels else traces[index].strategy for index in members]
        for panel, axis in zip(line, against, strict=True):
            _draw(panel, [traces[index] for index in members], names, axis)
            panel.set_title(group, fontsize=10)
        line[0].legend(fontsize=8)
    if title:
        figure.suptitle(title, fontsize=11)
    (path := Path(path)).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _draw(panel: Any, traces: Sequence[Trace], names: Sequence[str], axis: str) -> None:
    from matplotlib.ticker import EngFormatter

    for trace, name in zip(traces, names, strict=True):
        places = [getattr(row, axis) for row in trace.rows]
        panel.plot(places, [row.loss for row in trace.rows], marker=".", label=name)
    if axis == "bytes":
        panel.xaxis.set_major_formatter(EngFormatter(unit="B"))
    panel.set_xlabel(AXES[axis])
    panel.set_ylabel("loss")
    panel.grid(alpha=0.3)
