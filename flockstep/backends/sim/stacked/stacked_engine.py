"""The stacked way to simulate: many nodes, and many seeds, as one matrix. For strategies that are row-wise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flockstep.backends.sim.cluster.compute import clocks_of, starts_of
from flockstep.backends.sim.cluster.fault_schedule import Outages
from flockstep.backends.sim.job import Job
from flockstep.backends.sim.kernel import Kernel
from flockstep.backends.sim.stacked.stacked_clock import StackedClock
from flockstep.backends.sim.stacked.stacked_draws import StackedDraws
from flockstep.backends.sim.stacked.stacked_flock import NotRowWise, SimFlock
from flockstep.backends.sim.wires import Wires
from flockstep.budget import Budget
from flockstep.errors import Diverged, FlockstepError
from flockstep.flock import not_row_wise
from flockstep.node import stream
from flockstep.optimizers import works_by_coordinate
from flockstep.strategy import describe
from flockstep.trace import Row, Trace
from flockstep.workloads.workload import Stacked, Workload, stacked

OnRow = Callable[[int, Row], None]


def stacked_run(job: Job, seeds: Sequence[int], on_row: OnRow) -> list[Trace]:
    """All seeds at once; NotRowWise, with the reason, where a job must be done node by node."""
    if job.is_function:
        raise NotRowWise("a function of your own runs once per node")
    if isinstance(job.steps, Budget):
        raise NotRowWise("a budget is shared by nodes as they go")
    if job.timeline:
        raise NotRowWise("a timeline is told by nodes that run one by one")
    if job.faults:
        raise NotRowWise("what goes wrong goes wrong on one node")
    if part := not_row_wise(job.program):
        raise NotRowWise(f"{part} does not say that it is row-wise")
    workload: Workload = job.workload  # type: ignore[assignment]
    if (whole := stacked(workload, job.nodes)) is None:
        raise NotRowWise(f"{type(workload).__name__} has no stacked form")
    return _Run(job, workload, whole, seeds, on_row).traces()


class _Run:
    def __init__(self, job: Job, workload: Workload, whole: Stacked, seeds: Sequence[int], on_row: OnRow) -> None:
        steps: int = job.steps  # type: ignore[assignment]
        self._job, self._seeds, self._on_row = job, seeds, on_row
        size, self._every = job.nodes, job.every
        # Of the whole problem, whichever shard is asked; but the number of nodes may be part of the problem.
        self._judge = workload.shard(0, size)
        start = self._judge.start()
        params = start.expand(len(seeds), size, -1).clone()
        optimizer = job.optimizer([params])
        if not works_by_coordinate(optimizer):
            raise NotRowWise(f"{type(optimizer).__name__} may look at more than one coordinate at a time")
        draws = StackedDraws(whole, [[stream(seed, rank, "data") for rank in range(size)] for seed in seeds], steps)
        self._rows: list[list[Row]] = [[] for _ in seeds]
        self._flock = SimFlock(
            whole, params, optimizer, draws, _times(job, seeds), steps=steps, begin_step=self._begin_step
        )

    def traces(self) -> list[Trace]:
        """Run the program, which never waits, from its beginning to its end."""
        try:
            # What overflows shows in the loss.
            with np.errstate(all="ignore"):
                self._run_to_the_end()
                self._record(self._flock.step_count)
        except Diverged as error:
            if len(self._seeds) == 1:
                error.trace = self._trace(0)
            raise
        except (FlockstepError, NotRowWise):
            raise
        except Exception as error:
            # Node by node it will fail again, and then the error names the node.
            raise NotRowWise(f"{type(error).__name__}: {error}") from error
        return [self._trace(run) for run in range(len(self._seeds))]

    def _run_to_the_end(self) -> None:
        program: Any = self._job.program
        try:
            program.run(self._flock).send(None)
        except StopIteration:
            return
        raise NotRowWise("the program waits for something of its own")

    def _trace(self, run: int) -> Trace:
        models = dict(enumerate(self._flock.params[run].clone().unbind()))
        name = describe(self._job.program)
        return Trace(name, self._rows[run], self._flock.reports(run), models, engine="stacked")

    def _begin_step(self, step: int) -> None:
        if step % self._every == 0:
            self._record(step)

    def _record(self, step: int) -> None:
        params, seconds = self._flock.params, self._flock.times.now.max(axis=-1)
        average = params.mean(1, keepdim=True)
        spread = (params - average).square_().sum((1, 2)).div_(self._job.nodes).tolist()
        sent = float(self._flock.sent.mean())
        for run, mine in enumerate(self._rows):
            loss, now = self._judge.loss(average[run, 0]), float(seconds[run])
            if not math.isfinite(loss):
                raise Diverged(f"the loss of the average model is {loss} at step {step}{self._which(run)}", time=now)
            mine.append(Row(now, step, loss, sent, spread[run]))
            self._on_row(run, mine[-1])

    def _which(self, run: int) -> str:
        return f", seed {self._seeds[run]}" if len(self._seeds) > 1 else ""


def _times(job: Job, seeds: Sequence[int]) -> StackedClock:
    size = job.nodes
    clocks = None if job.compute is None else [clocks_of(job.compute, size, seed) for seed in seeds]
    starts = np.array([starts_of(job.skew, size, seed) for seed in seeds])
    # Nothing ever happens in this kernel: the wires are only asked how long a ring would take.
    kernel = Kernel(stream(0, 0, "ties"))
    wires = None if job.network is None else Wires(kernel, job.network, size, Outages((), size))
    return StackedClock(starts, clocks, wires)
