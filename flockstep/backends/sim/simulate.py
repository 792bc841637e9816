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
from flockstep.elastic import Elastic, elastic_of
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
    elastic: bool | Elastic = False,
) -> Trace:
    """Run a strategy on a workload, or your own function that joins, on virtual nodes. One seed, one outcome.

    Each node trains on its own shard of the workload, with its own optimizer. Your own function is called once per
    node, and each of its optimizer's steps takes the time of a gradient. What happens at one moment happens in random
    order: a program that relies on luck fails here first.

    Args:
        program: A strategy, or your own function without arguments that calls ``fs.join``.
        workload: What the strategy trains (see ``flockstep.workloads``). None for a function.
        nodes: How many virtual nodes.
        steps: Steps of each node, or a ``Budget`` of all nodes together. For workloads.
        optimizer: Makes a node's torch optimizer from a list of tensors: ``functools.partial(torch.optim.AdamW,
            lr=1e-3)``. By default SGD with a rate of 0.1. For workloads.
        network: How long messages take. None: no time.
        compute: How long gradients take. None: no time.
        faults: What goes wrong, and when: any of ``fs.faults``.
        start_skew: Nodes start at random moments within so much virtual time: seconds, or a text such as "20 ms". None:
            the time of one gradient.
        record_every: Steps between two records of the loss of the average model. None: about 20 records. For workloads.
        timeout: How long an ``ask`` waits for its reply, in virtual time: seconds, or a text such as "2 min".
        seed: Seed of batches, of the strategy's and its codecs' random numbers, and of the hardware's.
        on_row: Called with each record as it comes. For workloads.
        engine: "events" runs every node as a program of its own; "stacked" runs all of them as one matrix, many times
            faster, where strategy, workload and optimizer work row by row and nothing but whole rounds costs time; the
            numbers are the same up to rounding. "auto": stacked where that is possible; ``trace.engine`` says which it
            was.
        timeline: Whether the trace holds what every node did when, and who sent how much to whom; by "events" only.
        elastic: Whether a strategy that takes means goes on when nodes die, and takes in those that come back: True, or
            an ``Elastic``. By default a death ends such a run. One-sided strategies go on in any case.

    Returns:
        The trace: losses, bytes and virtual seconds of every node, and the final models.

    Example:
        hardware = dict(network=fs.Network(bandwidth="100 Mbit/s", latency="20 ms"), compute=fs.Compute(step="50 ms"))
        trace = fs.simulate(fs.LocalSGD(period=8), workload, nodes=16, **hardware)
        print(trace)
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
        elastic=elastic_of(elastic, "simulate"),
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
    """``simulate`` once for every seed, all at once where the stacked engine can.

    The workload is the same in all runs; batches, noise and hardware differ. Seeds that do not run stacked run one
    after another.

    Args:
        program: A strategy.
        workload: What the strategy trains (see ``flockstep.workloads``).
        seeds: One run for each.
        nodes: How many virtual nodes.
        steps: Steps of each node, or a ``Budget`` of all nodes together.
        optimizer: Makes a node's torch optimizer from a list of tensors: ``functools.partial(torch.optim.AdamW,
            lr=1e-3)``. By default SGD with a rate of 0.1.
        network: How long messages take. None: no time.
        compute: How long gradients take. None: no time.
        faults: What goes wrong, and when: any of ``fs.faults``.
        start_skew: Nodes start at random moments within so much virtual time: seconds, or a text such as "20 ms". None:
            the time of one gradient.
        record_every: Steps between two records of the loss of the average model. None: about 20 records.
        timeout: How long an ``ask`` waits for its reply, in virtual time: seconds, or a text such as "2 min".
        on_row: Called with each record as it comes, after the number of its run, from 0.
        engine: "events", "stacked" or "auto", as for ``simulate``.
        timeline: Whether traces hold what every node did when, and who sent how much to whom; by "events" only.

    Returns:
        One trace per seed, in their order.

    Example:
        traces = fs.simulate_seeds(fs.LocalSGD(period=8), workload, seeds=range(5), nodes=16)
        print([trace.loss for trace in traces])
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

    if job.elastic is not None and engine == "stacked":
        raise ValueError("simulate.engine cannot be 'stacked' where nodes come and go: elastic runs go by events")
    if engine != "events" and job.elastic is None:
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
