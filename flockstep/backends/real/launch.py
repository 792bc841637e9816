"""Real runs from Python: ``launch`` starts nodes as processes or threads, or joins those torchrun started."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from flockstep import check, units
from flockstep.backends.real import c10d
from flockstep.backends.real.drive import drive
from flockstep.backends.real.fabric import Fabric
from flockstep.backends.real.node import RealNode
from flockstep.backends.real.threads import Hub, ThreadFabric
from flockstep.errors import Deadlock, FlockstepError, LostPeer, NodeDied, located, nodes_named
from flockstep.node import OptimizerFactory
from flockstep.strategy import Strategy, describe
from flockstep.trace import NodeReport, Row, Trace
from flockstep.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything a node must know to run."""

    strategy: Strategy
    workload: Workload
    size: int
    steps: int
    optimizer: OptimizerFactory
    record_every: int
    seed: int
    timeout: float


@dataclass(frozen=True)
class Outcome:
    """What a node has to show at the end."""

    report: NodeReport
    rows: list[Row]
    model: Tensor


def launch(
    strategy: Strategy,
    workload: Workload,
    *,
    nodes: int | None = None,
    steps: int = 100,
    optimizer: OptimizerFactory = partial(torch.optim.SGD, lr=0.1),
    on: str = "processes",
    record_every: int | None = None,
    timeout: str | float = 300.0,
    seed: int = 0,
    on_row: Callable[[Row], None] | None = None,
) -> Trace:
    """Run a strategy for real: the same program as ``simulate``, the same numbers, real seconds.

    Starts ``nodes`` processes on this machine that talk through torch.distributed, or with ``on="threads"`` threads of
    this one. In a script that torchrun started, the processes are there already: each call runs its own node, ``nodes``
    may be left out, and ``models`` of the trace holds this process's own. An exception in any node ends all and is
    raised here; so does Ctrl-C. ``timeout`` is how long any wait may last.
    """
    check.one_of("launch", "on", on, ("processes", "threads"))
    check.has("launch", "strategy", strategy, "run", kind="a strategy such as LocalSGD(period=8)")
    check.has("launch", "workload", workload, "start", "gradient", "loss", "shard", kind="a workload")
    check.whole("launch", "steps", steps)
    check.whole("launch", "seed", seed, at_least=0)
    started_by_torchrun = on == "processes" and "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if started_by_torchrun:
        world = int(os.environ["WORLD_SIZE"])
        if nodes not in (None, world):
            raise ValueError(f"launch.nodes is {nodes}, but torchrun started {world} processes; leave nodes out")
        nodes = world
    elif nodes is None:
        raise ValueError("launch.nodes says how many nodes to start; only under torchrun can it be left out")
    job = Job(
        strategy=strategy,
        workload=workload,
        size=check.whole("launch", "nodes", nodes),
        steps=steps,
        optimizer=optimizer,
        record_every=max(1, steps // 20)
        if record_every is None
        else check.whole("launch", "record_every", record_every),
        seed=seed,
        timeout=check.positive("launch", "timeout", units.seconds(timeout, "launch.timeout")),
    )
    if started_by_torchrun:
        return _join_torchrun(job, on_row)
    if on == "threads":
        return assemble(job, _run_threads(job, on_row))
    from flockstep.backends.real.spawn import run_processes

    return assemble(job, run_processes(job, on_row))


def run_node(job: Job, rank: int, fabric: Fabric, on_row: Callable[[Row], None] | None) -> Outcome:
    """One node's whole life, on whichever thread or process this is."""
    node: RealNode | None = None
    try:
        node = RealNode(
            fabric,
            rank,
            job.size,
            workload=job.workload.shard(rank, job.size),
            optimizer=job.optimizer,
            steps=job.steps,
            record_every=job.record_every,
            seed=job.seed,
            on_row=on_row,
        )
        drive(job.strategy.run(node))
        node.finish()
    except Exception as raised:
        error = located(raised, rank, node.now if node else 0.0)
        fabric.fail(error)
        if error is raised:
            raise
        raise error from raised
    return Outcome(node.report, node.rows, node.params)


def assemble(job: Job, outcomes: dict[int, Outcome]) -> Trace:
    """One trace from what the nodes brought home."""
    first = outcomes[min(outcomes)]
    reports = [outcomes[rank].report for rank in sorted(outcomes)]
    return Trace(describe(job.strategy), first.rows, reports, {rank: o.model for rank, o in outcomes.items()})


def verdict(errors: dict[int, FlockstepError]) -> FlockstepError:
    """Of the errors of all nodes the one that explains the rest: a node's own, a death, a deadlock, a lost peer."""
    own = [error for error in errors.values() if not isinstance(error, LostPeer | Deadlock)]
    deaths = [error for error in errors.values() if isinstance(error, NodeDied)]
    stuck = {rank: error for rank, error in errors.items() if isinstance(error, Deadlock)}
    if own or deaths or not stuck:
        return (own or deaths or list(errors.values()))[0]
    # Each node knows only its own wait: those who wait in the same place are told in one sentence.
    first = stuck[min(stuck)]
    alike = sorted(
        rank for rank, error in stuck.items() if (error.channel, error.round) == (first.channel, first.round)
    )
    _, waits, where = first.message.partition(" waits in ")
    if waits and len(alike) > 1:
        first.message = f"{nodes_named(alike)} wait in {where}"
    return first


def _run_threads(job: Job, on_row: Callable[[Row], None] | None) -> dict[int, Outcome]:
    hub = Hub(job.size, job.timeout)
    outcomes: dict[int, Outcome] = {}

    def body(rank: int) -> None:
        # What went wrong is known to the hub by then.
        with suppress(FlockstepError):
            outcomes[rank] = run_node(job, rank, ThreadFabric(hub, rank), on_row)

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(job.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if hub.failed:
        raise verdict(hub.failed)
    return outcomes


def _join_torchrun(job: Job, on_row: Callable[[Row], None] | None) -> Trace:
    from flockstep.backends.real.processes import ProcessFabric

    store, rank, size = next(iter(c10d.rendezvous("env://")))
    # A restarted group must not read what the one before it wrote.
    store = c10d.PrefixStore(f"flockstep/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    device = job.workload.start().device
    fabric = ProcessFabric(store, rank, size, job.timeout, device)
    outcome = run_node(job, rank, fabric, on_row)
    trace = assemble(job, {rank: outcome})
    store.set(f"report/{rank}", trace.to_json())
    every: list[Trace] = [Trace.from_json(store.get(f"report/{r}").decode()) for r in range(size)]
    trace.nodes = [node for other in every for node in other.nodes]
    fabric.close()
    return trace
