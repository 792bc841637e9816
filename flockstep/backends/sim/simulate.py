"""``simulate``: virtual nodes on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from flockstep import check
from flockstep.backends.sim.cluster.compute import Compute
from flockstep.backends.sim.cluster.network import Network
from flockstep.backends.sim.events import by_events
from flockstep.backends.sim.job import Job
from flockstep.backends.sim.stacked.stacked_engine import stacked_run
from flockstep.backends.sim.stacked.stacked_flock import NotRowWise
from flockstep.budget import Budget
from flockstep.drift import warn_of_drift
from flockstep.faults import Fault
from flockstep.node import OptimizerFactory
from flockstep.strategy import Strategy
from flockstep.trace import Row, Trace
from flockstep.workloads.workload import Workload

ENGINES = ("auto", "events", "stacked")


def simulate(
    program: Strategy | Callable[[], Any],
    workload: Workload | None = None,
    *,
    nodes: int,
    steps: int | Budget = 100,
    optimizer: OptimizerFactory = partial(torch.optim.SGD, lr=0.1),
    network: Network | None = None,
    compute: Compute | None = None,
    faults: Sequence[Fault] = (),
    start_skew: str | float | None = None,
    record_every: int | None = None,
    timeout: str | float = 60.0,
    seed: int = 0,
    on_row: Callable[[Row], None] | None = None,
    engine: str = "auto",
    timeline: bool = False,
) -> Trace:
    """Run a strategy on a workload, or your own function that joins, on virtual nodes. One seed, one outcome.

    Each node trains on its own shard of ``workload`` for ``steps`` steps, or all together until a ``Budget`` is spent,
    with its own ``optimizer``; your own function does as it likes, and each of its optimizer's steps takes the time of
    a gradient. ``network`` says how long messages take (None: no time), ``compute`` how long gradients take (None: no
    time), ``faults`` what goes wrong: any of ``fs.faults``. Nodes start at moments spread over ``start_skew`` (one
    gradient's time unless given), and what happens at one moment happens in random order: a program that relies on luck
    fails here first. The loss of the average model is recorded every ``record_every`` steps (about 20 times unless
    given); ``on_row`` sees each record as it comes. ``timeout``, in virtual time, is how long an ``ask`` waits.

    Two engines give the same numbers, up to rounding: "events" runs every node as a program of its own; "stacked" runs
    all of them as one matrix, many times faster, where strategy, workload and optimizer work row by row and nothing but
    whole rounds costs time. "auto" takes the second where it can; ``trace.engine`` says which it was. With ``timeline``
    the trace holds one, of what every node did when and of who sent how much to whom; only "events" can tell.
    """
    job = Job(
        program=program,
        workload=workload,
        nodes=nodes,
        steps=steps,
        optimizer=optimizer,
        network=network,
        compute=compute,
        faults=faults,
        start_skew=start_skew,
        record_every=record_every,
        timeout=timeout,
        timeline=timeline,
    )
    traces = _run(job, [seed], None if on_row is None else lambda run, row: on_row(row), engine)
    warn_of_drift(traces)
    return traces[0]


def simulate_seeds(
    program: Strategy,
    workload: Workload,
    *,
    seeds: Iterable[int],
    nodes: int,
    steps: int | Budget = 100,
    optimizer: OptimizerFactory = partial(torch.optim.SGD, lr=0.1),
    network: Network | None = None,
    compute: Compute | None = None,
    faults: Sequence[Fault] = (),
    start_skew: str | float | None = None,
    record_every: int | None = None,
    timeout: str | float = 60.0,
    on_row: Callable[[int, Row], None] | None = None,
    engine: str = "auto",
    timeline: bool = False,
) -> list[Trace]:
    """``simulate`` once for every seed, all at once where the stacked engine can: one trace per seed, in their order.

    The workload is the same in all runs; batches, noise and hardware differ. ``on_row`` is told which run, from 0, a
    record belongs to. Seeds that do not run stacked run one after another.
    """
    job = Job(
        program=program,
        workload=workload,
        nodes=nodes,
        steps=steps,
        optimizer=optimizer,
        network=network,
        compute=compute,
        faults=faults,
        start_skew=start_skew,
        record_every=record_every,
        timeout=timeout,
        timeline=timeline,
    )
    chosen = list(seeds)
    if not chosen:
        raise ValueError("simulate_seeds.seeds must name at least one seed, got none")
    traces = _run(job, chosen, on_row, engine)
    warn_of_drift(traces)
    return traces


def _run(job: Job, seeds: Sequence[int], on_row: Callable[[int, Row], None] | None, engine: str) -> list[Trace]:
    for seed in seeds:
        check.whole("simulate", "seed", seed, at_least=0)
    check.one_of("simulate", "engine", engine, ENGINES)
    rows_sent = [0] * len(seeds)

    def tell(run: int, row: Row) -> None:
        rows_sent[run] += 1
        if on_row is not None:
            on_row(run, row)

    if engine != "events":
        try:
            return stacked_run(job, seeds, tell)
        except NotRowWise as error:
            if engine == "stacked":
                raise ValueError(f"simulate.engine cannot be 'stacked' here: {error}") from None
    return [by_events(job, seed, _after(rows_sent[run], run, on_row)) for run, seed in enumerate(seeds)]


def _after(rows_sent: int, run: int, on_row: Callable[[int, Row], None] | None) -> Callable[[Row], None] | None:
    """Tells of rows, but not of the first few, which a stacked run that had to be given up has told already."""
    if on_row is None:
        return None
    left = iter(range(rows_sent))

    def tell(row: Row) -> None:
        if next(left, None) is None:
            on_row(run, row)

    return tell
