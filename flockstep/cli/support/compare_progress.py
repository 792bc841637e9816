"""Progress of a comparison: a bar per strategy for all its seeds, and the time left for all together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Task
from rich.table import Column
from rich.text import Text

from flockstep.cli.support import consoles
from flockstep.cli.support.progress import TimeLeft, bars, time_left
from flockstep.compare.runner import Run

_ALL = "all together"
# An estimate from less than this part of one run is a guess.
_ENOUGH = 0.05


class Bars:
    """Shows which runs are done, how far those under way are, and when all will be; lines where there is no terminal.

    Only what is done here counts for the time left: runs kept from before cost nothing.
    """

    def __init__(self, console: Console, labels: Sequence[str], *, seeds: int, steps: int, todo: Sequence[Run]) -> None:
        self._console, self._labels, self._seeds, self._steps = console, labels, seeds, steps
        self._live = consoles.is_live(console)
        self._todo, self._over, self._share = len(todo), 0, dict.fromkeys(todo, 0.0)
        self._losses: dict[Run, float] = {}
        self._begun: float | None = None
        self.warnings: list[str] = []
        self._bars = bars(console, ("seeds", "loss"), _TimeLeftOfAll(table_column=Column(no_wrap=True)))
        self._done = [seeds - sum(run.index == index for run in todo) for index in range(len(labels))]
        self._tasks = [
            self._bars.add_task(label, total=seeds, completed=done, seeds=self._seeds_done(done), loss="", due=None)
            for label, done in zip(labels, self._done, strict=True)
        ]
        self._all = self._bars.add_task(_ALL, total=len(todo), start=False, seeds="", loss="", due=None)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, run: Run) -> None:
        """A run begins."""
        if self._begun is None:
            self._begun = time.monotonic()
            self._bars.start_task(self._all)

    def progress(self, run: Run, step: int, loss: float) -> None:
        """A run got so far."""
        self._losses[run] = loss
        # A run is not over before it says so, whatever step it is at.
        self._share[run] = min(0.99, step / self._steps) if self._steps else 0.0
        self._redraw(run)

    def end(self, run: Run, failure: str | None) -> None:
        """A run is over."""
        self._over, self._share[run] = self._over + 1, 1.0
        self._done[run.index] += 1
        self._redraw(run)
        if not self._live:
            ending = (
                f"loss {self._losses[run]:.4g}" if failure is None and run in self._losses else f"failed: {failure}"
            )
            left = self._left()
            after = "" if left is None or self._over == self._todo else f", {time_left(left)}"
            line = f"{self._labels[run.index]}, seed {run.seed}: {ending} (run {self._over} of {self._todo}{after})"
            self._console.print(line, markup=False, soft_wrap=True)

    def warn(self, run: Run, sentence: str) -> None:
        """Kept for the end: once per strategy is enough."""
        line = f"{self._labels[run.index]}: {sentence}"
        if line not in self.warnings:
            self.warnings.append(line)

    def _redraw(self, run: Run) -> None:
        index = run.index
        shares = [share for each, share in self._share.items() if each.index == index]
        done = self._seeds - len(shares) + sum(shares)
        loss = f"loss {self._losses[run]:.4g}" if run in self._losses else ""
        self._bars.update(self._tasks[index], completed=done, seeds=self._seeds_done(self._done[index]), loss=loss)
        left = self._left()
        due = None if left is None else time.monotonic() + left
        self._bars.update(self._all, completed=sum(self._share.values()), due=due)

    def _left(self) -> float | None:
        done = sum(self._share.values())
        if self._begun is None or done < _ENOUGH:
            return None
        return (time.monotonic() - self._begun) / done * (self._todo - done)

    def _seeds_done(self, done: int) -> str:
        return f"{done} of {self._seeds} seed{'s' * (self._seeds > 1)}"


class _TimeLeftOfAll(TimeLeft):
    """Runs of several strategies take turns: only for all together is there a time."""

    def render(self, task: Task) -> Text:
        """The cell of one line."""
        return super().render(task) if task.description == _ALL else Text("")
