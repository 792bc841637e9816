"""The numbers of a report as CSV files: every row of every run, and the table unrounded."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flockstep.compare.folder import Results
from flockstep.compare.report.figures import Summary
from flockstep.timeline import KINDS
from flockstep.trace import Row


def write_rows(results: Results, path: Path) -> Path:
    """Every recorded row; ``samples`` as in the report."""
    plan = results.plan
    rows = (
        {
            "strategy": plan.strategies[index],
            "label": plan.labels[index],
            "seed": outcome.seed,
            **asdict(row),
            "samples": row.step * plan.samples_per_step,
        }
        for index, outcomes in enumerate(results.runs)
        for outcome in outcomes
        for row in outcome.trace.rows
    )
    return _write(path, ["strategy", "label", "seed", *Row.__dataclass_fields__, "samples"], rows)


def write_table(lines: Sequence[Summary], target: float | None, path: Path) -> Path:
    """A line per strategy. What is not known, or not reached by every seed, is left empty."""
    rows = [_line(line, target) for line in lines]
    return _write(path, list(rows[0]) if rows else ["strategy"], rows)


def _line(line: Summary, target: float | None) -> dict[str, Any]:
    return {
        "strategy": line.strategy,
        "label": line.label,
        "optimizer": line.optimizer,
        "seeds": len(line.losses),
        "loss_mean": line.loss,
        "loss_deviation": line.deviation,
        "target": target,
        "seeds_reached": len(line.reached),
        "seconds_to_target": line.time,
        "seconds_to_target_least": min(line.reached) if line.time is not None else None,
        "seconds_to_target_most": max(line.reached) if line.time is not None else None,
        "times_as_fast": line.speedup,
        "bytes_per_node": line.sent,
        "spread": line.spread,
        **{f"share_{kind}": line.shares[kind] for kind in KINDS},
        "failures": "; ".join(f"seed {seed}: {why}" for seed, why in line.failures),
        "drifts": "; ".join(f"seed {seed}: {how}" for seed, how in line.drifts),
    }


def _write(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path
