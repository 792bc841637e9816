"""``simulate``: virtual nodes on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from flockstep import check, units
from flockstep.backends.sim.compute import Clock, Compute
from flockstep.backends.sim.faults import Crash, Fault, Slowdown, named
from flockstep.backends.sim.losses import Losses
from flockstep.backends.sim.mail import Mail
from flockstep.backends.sim.meetings import Meetings
from flockstep.backends.sim.network import Network
from flockstep.backends.sim.outages import Outages
from flockstep.backends.sim.recorder import Glances, Recorder
from flockstep.backends.sim.training import TrainingNode
from flockstep.backends.sim.wires import Wires
from flockstep.backends.sim.world import World
from flockstep.budget import Budget
from flockstep.errors import FlockstepError
from flockstep.node import OptimizerFactory, stream
from flockstep.strategy import Strategy, describe, is_one_sided
from flockstep.trace import Row, Trace
from flockstep.workloads.workload import Workload


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
) -> Trace:
    """Run a strategy on a workload, or your own function that joins, on virtual nodes. One seed, one outcome.

    Each node trains on its own shard of ``workload`` for ``steps`` steps, or all together until a ``Budget`` is spent,
    with its own ``optimizer``; your own function does as it likes, and each of its optimizer's steps takes the time of
    a gradient. ``network`` says how long messages
    take (None: no time), ``compute`` how long gradients take (None: no time), ``faults`` what goes wrong: any of
    ``Crash``, ``Loss``, ``Partition``, ``Pause`` and ``Slowdown``. Nodes start at moments spread over ``start_skew``
    (one gradient's time unless given), and what happens at one moment happens in random order: a program that relies on
    luck fails here first. The loss of the average model is recorded every ``record_every`` steps (about 20 times unless
    given); ``on_row`` sees each record as it comes. ``timeout``, in virtual time, is how long an ``ask`` waits.
    """
    check.whole("simulate", "nodes", nodes)
    each = steps.steps_of_each(nodes) if isinstance(steps, Budget) else check.whole("simulate", "steps", steps)
    check.whole("simulate", "seed", seed, at_least=0)
    every = max(1, each // 20) if record_every is None else check.whole("simulate", "record_every", record_every)
    skew = units.seconds(
        start_skew if start_skew is not None else compute.step if compute else 0.0, "simulate.start_skew"
    )
    world = World(size=nodes, steps=steps, every=every, seed=seed)
    for fault in faults:
        check.ranks("simulate", "faults", dict.fromkeys(named(fault)), nodes)
    outages, losses = Outages(faults, nodes), Losses(faults, stream(seed, 0, "loss"))
    _connect(world, network, units.seconds(timeout, "simulate.timeout"), outages, losses)
    clocks = _clocks(compute, nodes, seed)
    starts = (skew * stream(seed, 0, "skew").random(nodes)).tolist()
    if workload is None and callable(program) and not hasattr(program, "run"):
        _add_function_nodes(world, program, clocks)
    else:
        check.has("simulate", "strategy", program, "run", kind="a strategy such as LocalSGD(period=8)")
        check.has("simulate", "workload", workload, "start", "gradient", "loss", "shard", kind="a workload")
        for rank, clock in enumerate(clocks):
            world.nodes.append(TrainingNode(world, rank, clock, program, workload, optimizer))  # type: ignore[arg-type]
        # Of the whole problem, whichever shard is asked; but the number of nodes may be part of the problem.
        kind = Glances if is_one_sided(program) else Recorder
        world.recorder = kind(world, workload.shard(0, nodes), on_row)  # type: ignore[union-attr]
    _declare(world, faults, outages)
    # Each program is begun at its node's own start, so that a run that ends before leaves nothing half begun.
    for node, start in zip(world.nodes, starts, strict=True):
        world.kernel.start(world.life(node, start), node, main=True)
    try:
        world.kernel.run()
    except FlockstepError as error:
        error.trace = _trace(world, describe(program))
        raise
    return _trace(world, describe(program))


def _connect(world: World, network: Network | None, timeout: float, outages: Outages, losses: Losses) -> None:
    world.wires = Wires(world.kernel, network, world.size, outages)
    world.meetings = Meetings(world.kernel, world.wires, world.size)
    world.mail = Mail(world.kernel, world.wires, world.nodes, timeout, losses)


def _clocks(compute: Compute | None, size: int, seed: int) -> list[Clock]:
    if compute is not None:
        compute.check_size(size)
    return [Clock(compute, rank, stream(seed, rank, "clock")) for rank in range(size)]


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


def _trace(world: World, name: str) -> Trace:
    for node in world.nodes:
        if node.rank not in world.kernel.returned and node.alive:
            node.tally.seconds = world.kernel.now
        if unread := world.mail.unread(node.rank):
            node.tally.counts["unread messages"] = unread
    models = {node.rank: node.params for node in world.nodes if node.alive}
    return Trace(name, _rows(world), [node.tally for node in world.nodes], models, world.results)


def _rows(world: World) -> list[Row]:
    if world.recorder is not None:
        return world.recorder.rows
    # A user's own function: what its node 0 logged.
    first: Any = world.nodes[0]
    return list(first.rows)
