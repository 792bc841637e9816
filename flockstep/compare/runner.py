"""Runs the runs of a comparison that are not done yet: virtual ones side by side, one process each; real ones in turn.

Whatever ends it early, Ctrl-C above all, leaves no process behind and what is finished in the folder; the same
comparison, begun again, goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import torch

import flockstep as fs
from flockstep.backends.real.launch import child_processes
from flockstep.backends.real.launch.child_processes import interrupted_later
from flockstep.compare import real
from flockstep.compare.folder import Record, Results, finished, run_file
from flockstep.compare.plan import Comparison, check_continues
from flockstep.compare.runs import perform

LOG = "log.txt"
"""What runs print, user's own functions above all."""
REPORT = ("report.html", "report.png", "rows.csv", "table.csv")
"""What the report adds to the folder."""


@dataclass(frozen=True)
class Run:
    """One run to come."""

    index: int
    seed: int


class Listener(Protocol):
    """Whoever wants to know how far it is."""

    def begin(self, run: Run) -> None:
        """A run begins."""

    def progress(self, run: Run, step: int, loss: float) -> None:
        """A run got so far."""

    def end(self, run: Run, failure: str | None) -> None:
        """A run is over."""

    def warn(self, run: Run, sentence: str) -> None:
        """Something in a run is worth knowing."""


def prepare(comparison: Comparison, out: Path, *, fresh: bool) -> list[Run]:
    """Make the folder that of this comparison, and say what is left to run: every strategy's first seed first."""
    plan, before = comparison.record(), Record.read(out)
    if fresh:
        shutil.rmtree(out / "runs", ignore_errors=True)
        for name in (*REPORT, LOG):
            (out / name).unlink(missing_ok=True)
    elif before is not None:
        check_continues(plan, before, out)
    elif (out / "runs").exists():
        raise ValueError(f"{out} holds runs of no plan\n  give another --out, or --fresh to forget what is there")
    plan.write(out)
    every = (Run(index, seed) for seed in plan.seeds for index in range(len(plan.strategies)))
    return [run for run in every if finished(out, plan, run.index, run.seed) is None]


def run_all(comparison: Comparison, out: Path, runs: Sequence[Run], listener: Listener, *, workers: int) -> Results:
    """Run what is left to run; gives all results."""
    if comparison.real:
        real.run_in_turn(comparison, out, runs, listener)
    else:
        _Pool(comparison, out, listener, workers).run(runs)
    return Results.read(out)


class _Pool:
    """So many processes at once, each for one run."""

    def __init__(self, comparison: Comparison, out: Path, listener: Listener, workers: int) -> None:
        self._comparison, self._out, self._listener, self._workers = comparison, out, listener, workers
        self._plan = comparison.record()
        self._running: dict[Connection, tuple[Run, Any]] = {}

    def run(self, runs: Sequence[Run]) -> None:
        """All of them."""
        left = list(reversed(runs))
        try:
            while left or self._running:
                while left and len(self._running) < self._workers:
                    self._start(left.pop())
                for line in wait(list(self._running)):
                    self._hear(line)  # type: ignore[arg-type]
        finally:
            child_processes.end([process for _, process in self._running.values()], list(self._running))

    def _start(self, run: Run) -> None:
        context = child_processes.context()
        # Half a process cannot be ended in order.
        with interrupted_later():
            ours, theirs = context.Pipe(duplex=False)
            arguments = (self._comparison, run, self._out, theirs)
            process = context.Process(
                target=_work, args=arguments, name=f"flockstep run {run.index}-{run.seed}", daemon=True
            )
            process.start()
            theirs.close()
            self._running[ours] = run, process
        self._listener.begin(run)

    def _hear(self, line: Connection) -> None:
        run, process = self._running[line]
        try:
            said = json.loads(line.recv_bytes())
        except EOFError:
            del self._running[line]
            process.join()
            code = process.exitcode
            child_processes.end([process], [line])
            self._bury(run, code)
            return
        kind, *words = said
        if kind == "row":
            self._listener.progress(run, *words)
        elif kind == "warning":
            self._listener.warn(run, *words)
        elif kind == "mistake":
            message = fs.NodeFailed(f"{self._plan.labels[run.index]} with seed {run.seed}: {words[0]}")
            message.add_note(words[1])
            raise message

    def _bury(self, run: Run, code: int | None) -> None:
        outcome = finished(self._out, self._plan, run.index, run.seed)
        if outcome is None:
            label = self._plan.labels[run.index]
            raise fs.NodeFailed(f"the process of {label} with seed {run.seed} ended with exit code {code} halfway")
        self._listener.end(run, outcome.failure)


def _work(comparison: Comparison, run: Run, out: Path, line: Connection) -> None:
    """One run, in a process of its own."""
    child_processes.begin_as_child()
    torch.set_num_threads(1)
    _speak_into(out / LOG)

    def say(*words: object) -> None:
        # Of a mistake we are ended at once: what was printed before it must be in the file by then.
        sys.stdout.flush()
        line.send_bytes(json.dumps(words).encode())

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            path = run_file(out, run.index, run.seed)
            perform(comparison, run.index, run.seed, path, lambda row: say("row", row.step, row.loss), fs.simulate)
        for sentence in dict.fromkeys(str(each.message) for each in caught):
            say("warning", sentence)
    except Exception as error:
        message = error.message if isinstance(error, fs.FlockstepError) else f"{type(error).__name__}: {error}"
        say("mistake", message, traceback.format_exc())
    line.close()


def _speak_into(path: Path) -> None:
    """What this process prints goes into a file: a live picture on the terminal would be torn by it."""
    with path.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
