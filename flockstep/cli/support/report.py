"""What a command ends with: one table, one picture, one file of rows."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from flockstep import units
from flockstep.cli.support import summary
from flockstep.errors import FlockstepError
from flockstep.trace import Row, Trace

_TO_THE_SAME = "seconds to the\nloss all reached"


@dataclass(frozen=True)
class Run:
    """A run to be told about: where it was, what happened, and what ended it early."""

    where: str
    trace: Trace
    failure: FlockstepError | None = None


def table(
    runs: Sequence[Run], *, title: str, seconds: str = "seconds", details: bool = True, race: bool = False
) -> Table:
    """One line per run; ``details`` adds each strategy's arguments, its steps, and whatever its nodes counted.

    ``race`` adds how long each took to the loss that all runs of its place reached.
    """
    drawn = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    places = len({run.where for run in runs}) > 1
    for name in ["where"] * places + ["strategy"]:
        drawn.add_column(name, overflow="fold")
    for name in ["loss", "bytes sent\nper node", seconds, *[_TO_THE_SAME] * race, "share of time\ncomputing"]:
        drawn.add_column(name, justify="right", no_wrap=True)
    counts = [_counts(run.trace) for run in runs] if details else [{} for _ in runs]
    # Only what happened: a column of zeros says nothing.
    counted = list(dict.fromkeys(name for each in counts for name in each))
    for name in counted:
        drawn.add_column(name, justify="right", no_wrap=True)
    for run, count in zip(runs, counts, strict=True):
        extra = [f"{count.get(name, 0):.4g}" for name in counted]
        *costs, busy = _cells(run, details)
        raced = [_raced(run, runs)] if race else []
        drawn.add_row(*[run.where] * places, *costs, *raced, busy, *extra)
    return drawn


def _raced(run: Run, runs: Sequence[Run]) -> str:
    """How long a run took to the loss that all of its place reached."""
    took = run.trace.time_to(summary.reached([other.trace for other in runs if other.where == run.where]))
    return "-" if took is None else f"{took:.4g}"


def _cells(run: Run, details: bool) -> list[str]:
    trace = run.trace
    name = trace.strategy if details else trace.strategy.partition("(")[0]
    loss = f"{trace.loss:.4g}" if trace.rows else "-"
    return [
        name if run.failure is None else f"{name}, ended early",
        loss,
        units.show_bytes(trace.bytes_sent),
        f"{trace.seconds:.4g}",
        f"{trace.busy:.0%}",
    ]


def _counts(trace: Trace) -> dict[str, float]:
    """Steps, skips and whatever else was counted, per node."""
    total: dict[str, float] = {"steps": 0}
    for node in trace.nodes:
        total["steps"] += node.steps
        for name, count in {"skipped": node.skipped, **node.counts}.items():
            if count:
                total[name] = total.get(name, 0) + count
    return {name: count / len(trace.nodes) for name, count in total.items()}


def write_rows(runs: Sequence[Run], path: Path) -> Path:
    """Every recorded row of every run, as a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, ["where", "strategy", *Row.__dataclass_fields__])
        writer.writeheader()
        for run in runs:
            about = {"where": run.where, "strategy": run.trace.strategy}
            writer.writerows({**about, **asdict(row)} for row in run.trace.rows)
    return path
