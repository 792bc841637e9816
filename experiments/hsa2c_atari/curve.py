"""The curve of a run: rows on disk as they come, read back where a run goes on, and drawn."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from flockstep.rl.reporting.history import Row

_EVERY = 5.0
"""Seconds between two rows."""


class Curve:
    """Rows of one run."""

    def __init__(self, name: str, folder: Path | None, before: Sequence[Mapping[str, Any]] = ()) -> None:
        self._name, self._folder, self.rows = name, folder, [dict(row) for row in before]

    def add(self, row: Row, *, since: float = 0.0) -> dict[str, Any] | None:
        """Keep a row, unless the last one is too near; gives what was kept. ``since`` are seconds of earlier legs."""
        seconds = since + row.seconds
        if self.rows and seconds - float(self.rows[-1]["seconds"]) < _EVERY:
            return None
        kept = {
            "seconds": round(seconds, 1),
            "steps": row.timesteps,
            "games": row.episodes,
            "mean score": "" if math.isnan(row.mean_return) else round(row.mean_return, 2),
            "steps/s": round(row.steps_per_second),
            "entropy": "" if math.isnan(row.entropy) else round(row.entropy, 4),
            "value loss": "" if math.isnan(row.value_loss) else round(row.value_loss, 5),
            "learning rate": float(f"{row.learning_rate:.3g}"),
        }
        self.rows.append(kept)
        if self._folder is not None:
            # At once: a run of many minutes may be interrupted.
            report.keep(self._name, self.rows, self._folder)
        return kept


def read(path: Path) -> list[dict[str, Any]]:
    """Rows that were kept."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def draw(folder: Path, game: str) -> Path | None:
    """Scores against minutes and against steps, of all runs of a game that are kept in a folder."""
    from matplotlib.figure import Figure

    runs = {path.stem.removeprefix(f"{game}_"): read(path) for path in sorted(folder.glob(f"{game}_*.csv"))}
    runs = {name: [row for row in rows if row["mean score"]] for name, rows in runs.items()}
    if not any(runs.values()):
        return None
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True)
    for panel, column, unit, label in (
        (panels[0], "seconds", 60, "minutes"),
        (panels[1], "steps", 1e6, "million steps"),
    ):
        for name, rows in runs.items():
            scores = [float(row["mean score"]) for row in rows]
            panel.plot([float(row[column]) / unit for row in rows], scores, label=_told(name))
        panel.set(xlabel=label)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("score, mean of the last 100 games")
    panels[0].legend(loc="upper left", fontsize=8)
    figure.suptitle(f"HSA2C on {game}, actions drawn at random as in training")
    path = folder / f"{game}.png"
    figure.savefig(path, dpi=130)
    return path


def _told(run: str) -> str:
    """``8x16_cuda_0`` in words."""
    shape, device, seed = run.split("_")
    workers, _, envs = shape.partition("x")
    who = f"{workers} workers of {envs} games" if envs else "stable-baselines3"
    return f"{who}, {'GPU' if device == 'cuda' else device.upper()}, seed {seed}"
