"""Virtual nodes as programs of their own, on a heap of events: the way to simulate anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flockstep import units
from flockstep.backends.sim.cluster.compute import Clock, clocks_of, starts_of
from flockstep.backends.sim.cluster.fault_schedule import MessageLosses, Outages
from flockstep.backends.sim.collectives import Collectives
from flockstep.backends.sim.job import Job
from flockstep.backends.sim.mail import Mail
from flockstep.backends.sim.recorder import Glances, Recorder
from flockstep.backends.sim.training import TrainingNode
from flockstep.backends.sim.views import Views
from flockstep.backends.sim.wires import Wires
from flockstep.backends.sim.world import World
from flockstep.errors import FlockstepError
from flockstep.faults import Crash, Fault, Slowdown
from flockstep.node import stream
from flockstep.strategy import describe, is_one_sided
from flockstep.timeline import Timeline
from flockstep.trace import Row, Trace


def by_events(job: Job, seed: int, on_row: Callable[[Row], None] | None) -> Trace:
    """Run every node of a job."""
    size, program, workload = job.nodes, job.program, job.workload
    timeline = Timeline() if job.timeline else None
    world = World(size=size, steps=job.steps, every=job.every, seed=seed, timeline=timeline)
    outages, losses = Outages(job.faults, size), MessageLosses(job.faults, stream(seed, 0, "loss"))
    _connect(world, job, outages, losses)
    clocks, starts = clocks_of(job.compute, size, seed), starts_of(job.skew, size, seed)
    if job.is_function:
        _add_function_nodes(world, program, clocks)  # type: ignore[arg-type]
    else:
        for rank, clock in enumerate(clocks):
            world.nodes.append(TrainingNode(world, rank, clock, program, workload, job.optimizer))  # type: ignore[arg-type]
        # Of the whole problem, whichever shard is asked; but the number of nodes may be part of the problem.
        kind = Glances if is_one_sided(program) else Recorder
        world.recorder = kind(world, workload.shard(0, size), on_row)  # type: ignore[union-attr]
    _declare(world, job.faults, outages)
    if job.elastic is not None and not job.is_function:
        _declare_silences(world, outages, job.elastic.virtual_patience)
    # Each program is begun at its node's own start, so that a run that ends before leaves nothing half begun.
    for node, start in zip(world.nodes, starts, strict=True):
        world.kernel.start(world.life(node, start), node, main=True)
    try:
        world.kernel.run()
    except FlockstepError as error:
        error.trace = _trace(world, describe(program))
        raise
    return _trace(world, describe(program))


def _connect(world: World, job: Job, outages: Outages, losses: MessageLosses) -> None:
    world.wires = Wires(world.kernel, job.network, world.size, outages)
    if job.elastic is None:
        world.meetings = Collectives(world.kernel, world.wires, world.size)
    else:
        world.meetings = world.views = Views(world, world.wires, job.elastic)
    world.mail = Mail(world.kernel, world.wires, world.nodes, units.seconds(job.timeout), losses)


def _add_function_nodes(world: World, function: Callable[[], Any], clocks: list[Clock]) -> None:
    # Only here: strategies on workloads need no greenlets.
    from flockstep.backends.sim.joined import Fiber, SimJoinedNode, SimPlace

    for rank, clock in enumerate(clocks):
        node = SimJoinedNode(world, rank, clock)
        node.program = partial(Fiber, function, SimPlace(node, world.seed))
        world.nodes.append(node)


def _declare(world: World, faults: Sequence[Fault], outages: Outages) -> None:
    for node, pauses in zip(world.nodes, outages.pauses, strict=True):
        node.pauses = pauses
    for fault in faults:
        if isinstance(fault, Crash):
            back = None if fault.back_after is None else units.seconds(fault.back_after)
            if back is not None and world.recorder is None:
                raise ValueError(
                    "Crash.back_after needs a strategy on a workload: "
                    "simulate cannot begin a function of your own anew on one node"
                )
            world.kernel.first(units.seconds(fault.at), world.crash, fault.node, back)
        elif isinstance(fault, Slowdown):
            world.nodes[fault.node].slowdowns.append(fault)


def _declare_silences(world: World, outages: Outages, patience: float) -> None:
    """What lasts longer than others wait: who stands still, or is cut off, is left out and comes again afterwards."""
    for rank, pauses in enumerate(outages.pauses):
        for start, end in pauses:
            if end - start > patience:
                world.kernel.first(start + patience, world.stand_still, rank, end)
    for (start, end), sides in outages.partitions:
        if end - start > patience:
            world.kernel.first(start + patience, world.part, sides, end)


def _trace(world: World, name: str) -> Trace:
    for node in world.nodes:
        node.tally.settle()
        if node.rank not in world.kernel.returned and node.alive:
            node.tally.seconds = world.kernel.now
        if unread := world.mail.unread(node.rank):
            node.tally.counts["unread messages"] = unread
    models = {node.rank: node.params for node in world.nodes if node.alive}
    nodes = [node.tally for node in world.nodes]
    return Trace(name, _rows(world), nodes, models, world.results, engine="events", timeline=world.timeline)


def _rows(world: World) -> list[Row]:
    if world.recorder is not None:
        return world.recorder.rows
    # A user's own function: what its node 0 logged.
    first: Any = world.nodes[0]
    return list(first.rows)
