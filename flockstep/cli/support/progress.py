"""Progress of several runs, one after another: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from flockstep import units
from flockstep.cli.support import consoles
from flockstep.trace import Row

# Parts of a run after each of which a line is due where nothing can be redrawn.
_LINES = 5
# What a usual line takes besides its bar.
_WIDTH_OF_THE_REST = 72


@dataclass(frozen=True)
class Plan:
    """A run to come."""

    label: str
    steps: int
    gradients_per_step: int = 1
    """How many are computed one after another: by this the time of runs to come is judged from the one under way."""

    @property
    def work(self) -> int:
        """Gradients in all."""
        return self.steps * self.gradients_per_step


def bars(console: Console, fields: Sequence[str], time_left: ProgressColumn) -> Progress:
    """Lines of a name, a bar, some of a task's fields, and a time; drawn where lines can be redrawn."""
    # Names may fold where there is little room, figures may not.
    texts = [
        TextColumn(f"{{task.fields[{name}]}}", justify="right", table_column=Column(no_wrap=True)) for name in fields
    ]
    bar = BarColumn(max(6, min(24, console.width - _WIDTH_OF_THE_REST)), table_column=Column(no_wrap=True))
    name = TextColumn("{task.description}", markup=False)
    return Progress(name, bar, *texts, time_left, console=console, disable=not consoles.is_live(console))


class Watch:
    """Shows for every run its steps, its loss and the time left, and the time left in all."""

    def __init__(self, console: Console, plans: Sequence[Plan]) -> None:
        self._console, self._plans = console, plans
        self._live = consoles.is_live(console)
        self._bars = bars(console, ("steps", "loss"), TimeLeft(table_column=Column(no_wrap=True)))
        self._tasks = [
            self._bars.add_task(plan.label, total=plan.work, start=False, steps="", loss="", due=None) for plan in plans
        ]
        everything = sum(plan.work for plan in plans)
        self._all = self._bars.add_task(
            "all together", total=everything, visible=len(plans) > 1, steps="", loss="", due=None
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def follow(self, index: int) -> Callable[[Row], None]:
        """Begin a run: gives what to call with each of its rows."""
        plan = self._plans[index]
        if index:
            self._bars.stop_task(self._tasks[index - 1])
        self._bars.start_task(self._tasks[index])
        self._bars.update(self._tasks[index], loss="starting")
        begun: float | None = None
        printed = -1

        def on_row(row: Row) -> None:
            nonlocal begun, printed
            now = time.monotonic()
            # The first row is step 0: what came before it was starting up, which is no measure of speed.
            begun = now if begun is None else begun
            done = row.step * plan.gradients_per_step
            pace = (now - begun) / done if done else None
            self._redraw(index, row, done, pace)
            part = row.step * _LINES // plan.steps
            if not self._live and part > printed:
                printed = part
                self._say(plan, row, None if pace is None else pace * (plan.work - done))

        return on_row

    def _redraw(self, index: int, row: Row, done: int, pace: float | None) -> None:
        plan, task, now = self._plans[index], self._tasks[index], time.monotonic()
        due = None if pace is None else now + pace * (plan.work - done)
        steps, loss = f"step {row.step}/{plan.steps}", f"loss {row.loss:.4g}"
        self._bars.update(task, completed=done, steps=steps, loss=loss, due=due)
        before, after = (sum(p.work for p in part) for part in (self._plans[:index], self._plans[index + 1 :]))
        all_due = None if pace is None or due is None else due + pace * after
        self._bars.update(self._all, completed=before + done, due=all_due)

    def _say(self, plan: Plan, row: Row, left: float | None) -> None:
        ending = "" if left is None else ", done" if row.step == plan.steps else f", {time_left(left)}"
        line = f"{plan.label}: step {row.step} of {plan.steps}, loss {row.loss:.4g}{ending}"
        self._console.print(line, markup=False, soft_wrap=True)


class TimeLeft(ProgressColumn):
    """Counts down between rows too, since those of a slow run are far apart; at the end it says how long it took."""

    def render(self, task: Task) -> Text:
        """The cell of one run."""
        if task.finished or task.stop_time is not None:
            return Text(f"took {units.show_seconds(task.elapsed or 0.0)}", style="green")
        due = task.fields["due"]
        return Text("" if due is None else time_left(due - time.monotonic()))


def time_left(seconds: float) -> str:
    """For people."""
    # Whole seconds: an estimate to the millisecond would promise too much.
    return f"{units.show_seconds(max(1, round(seconds)))} left"
