"""A picture and a table of how a training went."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from flockstep.rl.reporting.history import Row

_PANELS = (
    ("timesteps", "mean_return", "environment steps", "mean return of 100 episodes"),
    ("seconds", "mean_return", "seconds", "mean return of 100 episodes"),
    ("timesteps", "entropy", "environment steps", "entropy"),
    ("timesteps", "value_loss", "environment steps", "value loss"),
)


def picture(rows: Sequence[Row], path: str | Path, title: str = "", threshold: float | None = None) -> Path:
    """Returns over steps and over seconds, entropy and value loss; a line where the environment counts as solved."""
    # The object interface draws without a display and leaves the user's own pyplot figures alone.
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(10, 6.4), layout="constrained")
    panels: Any = figure.subplots(2, 2)
    for panel, (along, what, label, name) in zip(panels.flat, _PANELS, strict=True):
        panel.plot([getattr(row, along) for row in rows], [getattr(row, what) for row in rows])
        panel.set_xlabel(label)
        panel.set_ylabel(name)
        panel.grid(alpha=0.3)
        if along == "timesteps":
            panel.xaxis.set_major_formatter(EngFormatter())
        if what == "mean_return" and threshold is not None:
            panel.axhline(threshold, linestyle=":", color="gray")
    if title:
        figure.suptitle(title)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def table(rows: Sequence[Row], path: str | Path) -> Path:
    """All rows as CSV."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    return path
