"""Time to the loss, and steps to it, against cores and machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Left the speed-up against p W, with the theory's limits; right what it costs in steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    widest = max(row["threads p"] * row["workers W"] for row in rows)
    left.plot([1, widest], [1, widest], color="0.6", linestyle="--", label="linear")
    for p in sorted({row["threads p"] for row in rows}):
        mine = [row for row in rows if row["threads p"] == p]
        cores = [row["threads p"] * row["workers W"] for row in mine]
        line = left.plot(cores, [row["times faster"] for row in mine], marker="o", label=f"p = {p}")[0]
        right.plot(cores, [row["of p = W = 1"] for row in mine], marker="o", color=line.get_color(), label=f"p = {p}")
        right.fill_between(
            cores, [row["least"] for row in mine], [row["most"] for row in mine], color=line.get_color(), alpha=0.2
        )
    total = next(row["steps in all"] for row in rows)
    limit = total**0.25 * total**0.5
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        panel.set_xlabel("cores in all, p x W")
        panel.grid(alpha=0.3)
        if limit <= 2 * widest:
            panel.axvline(limit, color="0.3", linestyle=":")
    left.set_yscale("log", base=2)
    left.set_ylabel("times faster to the loss than one core")
    left.set_title(f"theory: p <= {total**0.25:.1f}, W <= {total**0.5:.0f} for T = {total} steps", fontsize=10)
    right.set_ylabel("steps in all, of those of one core")
    right.set_title("what staleness and sharing cost", fontsize=10)
    left.legend(fontsize=8)
    figure.savefig(path, dpi=130)
