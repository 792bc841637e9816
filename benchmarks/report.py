"""How every benchmark and experiment is run and told: ``--quick``, progress, a table, kept rows, one line of JSON."""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import flockstep

Figures = Mapping[str, Any]


def arguments(name: str, description: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has; add your own."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the same code on less: under a minute, rows not kept")
    parser.add_argument("--out", type=Path, help="folder for rows and pictures (default: where this one's are kept)")
    return parser


class Progress:
    """Says on stderr what is running, how far it is, and about how long it will still take."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._began = total, 0, time.monotonic()

    def __call__(self, what: str) -> None:
        """Say what begins now; counts one of the total."""
        elapsed = time.monotonic() - self._began
        left = f", {elapsed / self._done * (self._total - self._done):.0f} s left" if self._done else ""
        self._done += 1
        print(f"[{self._done}/{self._total}] {what} ({elapsed:.0f} s{left})", file=sys.stderr, flush=True)


def table(rows: Sequence[Figures], title: str = "") -> str:
    """Rows as a table for people: one column per key, numbers to four figures."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([title, *lines] if title else lines)


def finish(
    name: str,
    rows: Sequence[Figures],
    *,
    figures: Figures,
    met: Mapping[str, bool],
    folder: Path | None,
    note: str = "",
) -> None:
    """Print the table, keep the rows where ``folder`` says (None: nowhere), and end with one JSON object."""
    print(table(rows))
    if note:
        print(note)
    if folder is not None:
        print(f"rows kept in {keep(name, rows, folder)}")
    for bar, reached in met.items():
        print(f"  {'met    ' if reached else 'NOT met'}  {bar}")
    print(json.dumps({"name": name, **figures, "met": dict(met)}))


def keep(name: str, rows: Sequence[Figures], folder: Path) -> Path:
    """Write rows as CSV under a line that says how they were made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.rpartition('.')[2]}.csv"
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="") as file:
        file.write(f"# {command()}\n# {versions()}\n")
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(dict(row) for row in rows)
    return path


def command() -> str:
    """The command this run was started with, as one would type it."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    name = module.name.removesuffix(".__main__") if module else Path(sys.argv[0]).name
    words = sys.argv[1:]
    if "--out" in words:
        # Where rows went says nothing about how they were made.
        del words[words.index("--out") : words.index("--out") + 2]
    return shlex.join(["python", "-m", name, *words])


def versions() -> str:
    """What it ran on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU thread(s)"
    software = f"flockstep {flockstep.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return f"{software}, {os.cpu_count()} cores {platform.machine()}, {device}"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
