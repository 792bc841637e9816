"""How a training looks while it runs: a bar that moves on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from flockstep.rl.reporting.callbacks import Every
from flockstep.rl.reporting.history import Row

_LINES = 10
"""Lines that a whole training prints where nothing can be redrawn."""


class Watching:
    """Shows rows; silent unless asked for a bar or for lines, ten in all or one ``every`` so many steps."""

    def __init__(self, name: str, since: int, until: int, *, bar: bool, lines: bool, every: int | None = None) -> None:
        self._console = Console(stderr=True, highlight=False)
        live = bar and self._console.is_terminal and not self._console.is_dumb_terminal
        self._lines = lines or (bar and not live)
        self._since, self._until, self._printed = since, until, -1
        self._every = None if every is None else Every(every, since)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(24), TextColumn("{task.fields[how]}"))
        self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console, disable=not live)
        self._task = self._bar.add_task(name, total=until - since, how="compiling, once")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, row: Row) -> None:
        """One more row."""
        done = row.timesteps - self._since
        self._bar.update(self._task, completed=done, how=describe(row))
        if self._lines and self._due(row):
            self._console.print(
                f"{row.timesteps:,} of {self._until:,} steps: {describe(row)}", markup=False, soft_wrap=True
            )

    def _due(self, row: Row) -> bool:
        if self._every is not None:
            return self._every.due(row.timesteps)
        part, before = (row.timesteps - self._since) * _LINES // max(1, self._until - self._since), self._printed
        self._printed = max(part, before)
        return part > before


def describe(row: Row) -> str:
    """A row in words."""
    parts = [
        "no episode yet" if math.isnan(row.mean_return) else f"return {row.mean_return:.1f}",
        f"{row.steps_per_second:,.0f} steps/s",
    ]
    if not math.isnan(row.entropy):
        parts += [f"entropy {row.entropy:.3f}", f"value loss {row.value_loss:.3g}"]
    return ", ".join(parts)
