"""Real runs from Python: ``launch`` starts nodes as processes or threads, or joins those that others started."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from flockstep import check, units
from flockstep.backends.real.collective import c10d
from flockstep.backends.real.join.joined import process_fabrics, store_of
from flockstep.backends.real.launch.cluster_environment import World, columns_of, find, read_islands
from flockstep.backends.real.launch.jobs import CallFunction, Job, OnRow, Stop, TrainWorkload, assemble
from flockstep.backends.real.launch.run_threads import run_threads
from flockstep.backends.real.recording import Recording
from flockstep.budget import Budget
from flockstep.drift import warn_of_drift
from flockstep.elastic import Elastic, elastic_of
from flockstep.node import OptimizerFactory
from flockstep.strategy import Strategy
from flockstep.timeline import Timeline
from flockstep.trace import Row, Trace
from flockstep.workloads.workload import Workload

_launches = itertools.count()


def launch(
    program: Strategy | Callable[[], Any],
    workload: Workload | None = None,
    *,
    nodes: int | None = None,
    steps: int | Budget = 100,
    optimizer: OptimizerFactory = partial(torch.optim.SGD, lr=0.1),
    on: str = "processes",
    record_every: int | None = None,
    timeout: str | float = 300.0,
    seed: int = 0,
    on_row: Callable[[Row], None] | None = None,
    stop: Callable[[], bool] | None = None,
    timeline: bool = False,
    elastic: bool | Elastic = False,
    islands: str | None = None,
) -> Trace:
    """Run a strategy on a workload, or your own function that joins, for real: the same program as ``simulate``.

    Nodes are processes on this machine that talk through torch.distributed, or threads. In a script that torchrun, srun
    or mpirun started, the processes are there already: each call runs its own node. An exception in any node ends all
    and is raised here; so does Ctrl-C; but a one-sided strategy on a workload goes on without a node that was killed,
    and so does every run with ``elastic=True``.

    Args:
        program: A strategy, or your own function without arguments that calls ``fs.join``.
        workload: What the strategy trains (see ``flockstep.workloads``). None for a function.
        nodes: How many nodes to start on this machine. None: those that torchrun, srun or mpirun started.
        steps: Steps of each node, or a ``Budget`` of all nodes together. For workloads.
        optimizer: Makes a node's torch optimizer from a list of tensors: ``functools.partial(torch.optim.AdamW,
            lr=1e-3)``. By default SGD with a rate of 0.1. For workloads.
        on: "processes", or "threads" of this process.
        record_every: Steps between two records of the loss of the average model. None: about 20 records. For workloads.
        timeout: How long any wait may last: seconds, or a text such as "2 min".
        seed: Seed of batches, and of the strategy's and its codecs' random numbers.
        on_row: Called with each record as it comes. For workloads.
        stop: Asked again and again; once it says True, nodes of a one-sided strategy take no more steps and end in
            order, and the trace is of what they did. None: never.
        timeline: Whether the trace holds what every node did when, and who sent how much to whom; nodes on several
            machines are as well aligned in it as these machines' clocks.
        elastic: Whether a strategy that takes means goes on when nodes die: True, or an ``Elastic`` that says when; of
            a function, whether its joins are elastic unless they say otherwise. On processes only.
        islands: How many islands of how many processes to start in place of ``nodes``, such as "2x4": for a function
            that shards its model inside (``fs.place().mesh()``). None: every node is one process.

    Returns:
        The trace. What your own function returned is in its ``results``, by rank; under torchrun its ``models`` are
        this process's own.

    Example:
        if __name__ == "__main__":
            print(fs.launch(fs.LocalSGD(period=8), workload, nodes=2, steps=100))
    """
    check.one_of("launch", "on", on, ("processes", "threads"))
    check.whole("launch", "seed", seed, at_least=0)
    columns = 1
    if islands is not None:
        nodes, columns = _islands(islands, nodes, workload, on)
    world = find(starts_own=nodes is not None) if on == "processes" else None
    size = check.whole("launch", "nodes", _size(nodes, world, columns))
    limit = check.positive("launch", "timeout", units.seconds(timeout, "launch.timeout"))
    # Read here: children that a server forks have its environment, not ours.
    keeping = Recording.from_environment(timeline=timeline)
    goes_on = elastic_of(elastic, "launch")
    job: Job
    if workload is None and callable(program) and not hasattr(program, "run"):
        job = CallFunction(
            function=program,
            size=size,
            columns=columns,
            seed=seed,
            timeout=limit,
            keeping=keeping,
            elastic=goes_on,
        )
    else:
        check.has("launch", "strategy", program, "run", kind="a strategy such as LocalSGD(period=8)")
        check.has("launch", "workload", workload, "start", "gradient", "loss", "shard", kind="a workload")
        each = steps.steps_of_each(size) if isinstance(steps, Budget) else check.whole("launch", "steps", steps)
        every = max(1, each // 20) if record_every is None else check.whole("launch", "record_every", record_every)
        job = TrainWorkload(
            strategy=program,  # type: ignore[arg-type]
            workload=workload,  # type: ignore[arg-type]
            size=size,
            steps=steps,
            optimizer=optimizer,
            record_every=every,
            seed=seed,
            timeout=limit,
            keeping=keeping,
            elastic=goes_on,
        )
    if stop is not None and not job.one_sided:
        raise ValueError("launch.stop is for one-sided strategies: others wait for each other at steps they agreed on")
    trace = _run(job, on, world, on_row, stop)
    warn_of_drift([trace])
    return trace


def _run(job: Job, on: str, world: World | None, on_row: OnRow | None, stop: Stop | None) -> Trace:
    if world is not None and not world.lonely:
        return _as_one_of(world, job, on_row, stop)
    if on == "threads":
        return assemble(job, run_threads(job, on_row, stop))
    from flockstep.backends.real.launch.spawn import run_processes

    return assemble(job, run_processes(job, on_row, stop))


def _islands(text: str, nodes: int | None, workload: object, on: str) -> tuple[int, int]:
    islands, columns = read_islands(text, "launch.islands")
    if nodes not in (None, islands):
        raise ValueError(f"launch.nodes is {nodes}, but launch.islands {text!r}; leave nodes out")
    if workload is not None or on != "processes":
        raise ValueError("launch.islands are of processes, and of your own function, which shards its model")
    return islands, columns


def _size(nodes: int | None, world: World | None, columns: int) -> int:
    if world is None or (world.lonely and nodes is not None):
        if nodes is None:
            raise ValueError(
                "launch.nodes says how many nodes to start; only under torchrun, srun or mpirun can it be left out"
            )
        return nodes
    if columns > 1 or columns_of(world.size) > 1:
        raise ValueError(
            f"{world}: launch has no islands among processes that are there already\n"
            "  call the function itself, with FLOCKSTEP_ISLANDS=2x8 or flockstep run --islands 2x8"
        )
    if nodes not in (None, world.size):
        raise ValueError(f"launch.nodes is {nodes}, but {world}; leave nodes out")
    return world.size


def _as_one_of(world: World, job: Job, on_row: OnRow | None, stop: Stop | None) -> Trace:
    rank, size = world.rank, world.size
    # The k-th launch of one process belongs with the k-th of every other.
    store = c10d.PrefixStore(f"launch/{next(_launches)}", store_of(world))
    trace = assemble(job, {rank: job.run(rank, process_fabrics(store, rank, size, job.timeout), on_row, stop)})
    store.set(f"report/{rank}", trace.to_json())
    every = [Trace.from_json(store.get(f"report/{other}").decode()) for other in range(size)]
    # Whoever holds the store must outlive the others' use of it.
    store.add("read", 1)
    deadline = time.monotonic() + job.timeout
    while rank == 0 and store.add("read", 0) < size and time.monotonic() < deadline:
        time.sleep(0.02)
    trace.nodes = [node for other in every for node in other.nodes]
    trace.timeline = Timeline.together(other.timeline for other in every)
    return trace
