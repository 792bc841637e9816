"""The table a comparison ends with on a terminal: the figures of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from flockstep import units

if TYPE_CHECKING:
    from flockstep.compare.report.figures import Summary


def table(lines: Sequence[Summary], goal: float | None, title: str) -> Table:
    """One line per strategy; ``goal`` is the loss that times are measured to."""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("strategy", overflow="fold")
    to = "to the target" if goal is None else f"to loss {goal:.4g}"
    for name in (
        "loss",
        f"seconds\n{to}",
        "times\nas fast",
        "bytes sent\nper node",
        "spread",
        "share of time\ncomputing",
    ):
        drawn.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        remarks = ", ended early" * bool(line.failures) + ", drifting apart" * bool(line.drifts)
        drawn.add_row(line.label + remarks, *_cells(line))
    return drawn


def _cells(line: Summary) -> list[str]:
    deviation = "" if line.deviation is None else f" ± {line.deviation:.2g}"
    return [
        "-" if line.loss is None else f"{line.loss:.4g}{deviation}",
        _seconds(line),
        "-" if line.speedup is None else f"{line.speedup:.3g}",
        "-" if line.sent is None else units.show_bytes(line.sent),
        "-" if line.spread is None else f"{line.spread:.2g}",
        f"{line.shares['computing']:.0%}",
    ]


def _seconds(line: Summary) -> str:
    if line.time is not None:
        return f"{line.time:.4g}"
    return f"{len(line.reached)} of {len(line.times)} seeds" if line.reached else "never"
