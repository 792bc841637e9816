"""The report of a comparison: one HTML page that needs no network, and beside it a picture and two CSV files."""

from __future__ import annotations

from pathlib import Path

from flockstep.compare.folder import Results
from flockstep.compare.report.figures import summaries, target_of
from flockstep.compare.report.page import page
from flockstep.compare.report.picture import draw
from flockstep.compare.report.sheets import write_rows, write_table

__all__ = ["write"]


def write(results: Results, out: str | Path) -> Path:
    """Write ``report.html``, ``report.png``, ``rows.csv`` and ``table.csv`` into a folder; gives the page's path back.

    Equal results give equal files: there is no date in them, and nothing drawn by lot.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    target = target_of(results)
    lines = summaries(results, target)
    write_rows(results, out / "rows.csv")
    write_table(lines, target, out / "table.csv")
    draw(results, target, out / "report.png")
    # Last, since it needs a library that may be missing.
    path = out / "report.html"
    path.write_text(page(results, lines, target), encoding="utf8")
    return path
