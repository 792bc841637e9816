"""The rows of an experiment: kept as they come, read back to be drawn again."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from benchmarks import report

Figures = dict[str, Any]

_WORDS = ("method", "note")


class Record:
    """Results of runs and points of their curves; written at once, so that an interruption loses nothing."""

    def __init__(self, size: str, folder: Path | None) -> None:
        self.runs: list[Figures] = []
        self.points: list[Figures] = []
        self._size, self._folder = size, folder

    @classmethod
    def load(cls, size: str, folder: Path) -> Record:
        """The rows kept in a folder."""
        record = cls(size, None)
        record.runs = _read(folder / f"{size}_runs.csv")
        record.points = _read(folder / f"{size}_curves.csv")
        return record

    def add_run(self, figures: Figures) -> None:
        """Keep the result of a run."""
        self.runs.append(figures)
        self._keep("runs", self.runs)

    def add_point(self, figures: Figures) -> None:
        """Keep a point of a curve."""
        self.points.append(figures)
        self._keep("curves", self.points)

    def curve(self, run: Figures) -> list[Figures]:
        """The points of one run."""
        return [p for p in self.points if (p["method"], p["rate"]) == (run["method"], run["rate"])]

    def _keep(self, what: str, rows: list[Figures]) -> None:
        if self._folder is not None:
            report.keep(f"{self._size}_{what}", rows, self._folder)


def _read(path: Path) -> list[Figures]:
    with path.open(newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    return [
        {name: value if name in _WORDS else float(value) for name, value in row.items() if value != ""}
        for row in csv.DictReader(lines)
    ]
