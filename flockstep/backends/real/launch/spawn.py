"""Nodes as child processes of this one: started, listened to, and never left behind."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from flockstep.backends.real.collective import c10d
from flockstep.backends.real.collective.rendezvous import Rendezvous
from flockstep.backends.real.join.island_place import Processes
from flockstep.backends.real.join.joined import process_fabrics
from flockstep.backends.real.launch import child_processes
from flockstep.backends.real.launch.child_processes import interrupted_later
from flockstep.backends.real.launch.jobs import Job, OnRow, Outcome, Stop
from flockstep.backends.real.launch.root_cause import root_cause
from flockstep.errors import FlockstepError, NodeDied, NodeFailed, located

# How long nodes may take to tell their own errors, once the first has told its.
_GRACE = 2.0
# How often whoever may stop the run is asked.
_LOOK_EVERY = 0.1
_log = logging.getLogger("flockstep")


def run_processes(job: Job, on_row: OnRow | None, stop: Stop | None) -> dict[int, Outcome]:
    """Run every node in a process of its own."""
    child_processes = _Children(job)
    try:
        # Before they are there: a run that is to end at once takes no step.
        child_processes.pass_on(stop)
        child_processes.start()
        return child_processes.attend(on_row, stop)
    finally:
        child_processes.end()


class _Children:
    def __init__(self, job: Job) -> None:
        self._size, self._columns = job.size * job.columns, job.columns
        self._goes_on = job.outlives_deaths
        # A file, not a TCP store: that one looks up the name of every client, and stalls for seconds where DNS does.
        self._folder = tempfile.TemporaryDirectory(prefix="flockstep-")
        self._path = str(Path(self._folder.name) / "store")
        self._rendezvous = Rendezvous(c10d.FileStore(self._path, -1), self._size)
        # By value, so that functions of a notebook or a __main__ script travel too. Only to our own children.
        self._payload = cloudpickle.dumps(job)
        self._outcomes: dict[int, Outcome] = {}
        self._errors: dict[int, FlockstepError] = {}
        # Of a run whose others go on.
        self._deaths: dict[int, FlockstepError] = {}
        self._ranks: dict[Connection, int] = {}
        self._processes: list[Any] = []
        # A byte that all share, without a lock: one who is killed takes none along.
        self._stopped = child_processes.context().RawValue("b", 0)

    def start(self) -> None:
        """Start them all, even where Ctrl-C comes in the middle of it: half a process cannot be ended in order."""
        context = child_processes.context()
        with interrupted_later():
            for rank in range(self._size):
                ours, theirs = context.Pipe(duplex=False)
                arguments = (rank, self._size, self._path, self._payload, theirs, self._stopped)
                process = context.Process(target=_child, args=arguments, name=f"flockstep node {rank}", daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._ranks[ours] = rank

    def pass_on(self, stop: Stop | None) -> None:
        """Tell the children to take no more steps, once whoever may stop the run says so."""
        if stop is not None and stop():
            self._stopped.value = 1

    def attend(self, on_row: OnRow | None, stop: Stop | None) -> dict[int, Outcome]:
        """Listen until every child has ended; raises what went wrong first."""
        deadline = None
        while self._ranks and (deadline is None or time.monotonic() < deadline):
            self.pass_on(stop)
            patience = None if stop is None else _LOOK_EVERY
            if deadline is not None:
                patience = max(0.0, deadline - time.monotonic())
            for ready in wait(list(self._ranks), patience):
                self._hear(ready, on_row)  # type: ignore[arg-type]
            if self._errors and deadline is None:
                deadline = time.monotonic() + _GRACE
        if self._errors or not self._outcomes:
            raise root_cause(self._errors or self._deaths, deaths_first=self._columns > 1)
        return self._outcomes

    def _hear(self, connection: Connection, on_row: OnRow | None) -> None:
        rank = self._ranks[connection]
        try:
            kind, thing = connection.recv()
        except EOFError:
            del self._ranks[connection]
            if rank not in self._outcomes and rank not in self._errors:
                self._rendezvous.bury(rank)
                death = self._death(rank)
                (self._deaths if self._goes_on else self._errors)[rank] = death
                if self._goes_on and self._ranks:
                    _log.warning("%s; the others go on", death)
            return
        if kind == "row" and on_row is not None:
            on_row(thing)
        elif kind == "outcome":
            self._outcomes[rank] = cloudpickle.loads(thing)
        elif kind == "error":
            self._errors[rank] = thing

    def _death(self, rank: int) -> NodeDied:
        who = f"node {rank}" if self._columns == 1 else f"process {rank} of island {rank // self._columns}"
        return NodeDied(f"{who} {child_processes.ending(self._processes[rank], 5.0)}", rank=rank)

    def end(self) -> None:
        """Leave nobody behind."""
        for process in self._processes:
            if process.is_alive():
                process.terminate()
        for process in self._processes:
            process.join(3.0)
            if process.is_alive():
                process.kill()
                process.join()
        for connection in self._ranks:
            connection.close()
        self._folder.cleanup()


def _child(rank: int, size: int, path: str, payload: bytes, connection: Connection, stopped: Any) -> None:
    child_processes.begin_as_child()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size) if hasattr(os, "sched_getaffinity") else 1)
    code = 0
    try:
        job: Job = cloudpickle.loads(payload)
        store = c10d.FileStore(path, -1)
        fabrics = process_fabrics(store, rank, size, job.timeout)
        processes = Processes(store, rank, size, job.timeout, job.columns)
        on_row, stop = (lambda row: connection.send(("row", row))), (lambda: bool(stopped.value))
        outcome = job.run(rank, fabrics, on_row, stop, processes)
        connection.send(("outcome", cloudpickle.dumps(replace(outcome, model=outcome.model.detach().cpu()))))
    except Exception as raised:
        error = located(raised, rank, 0.0)
        if isinstance(error, NodeFailed):
            error.add_note("".join(traceback.format_exception(raised)))
        connection.send(("error", error))
        code = 1
    connection.close()
    # A collective that can no longer end would hold up an orderly exit.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
