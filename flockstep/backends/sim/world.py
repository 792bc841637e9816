"""A run in virtual time: nodes, wires, faults and the record of what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from flockstep import check, units
from flockstep.backends.sim.compute import Clock, Compute
from flockstep.backends.sim.faults import Crash, Fault, Slowdown
from flockstep.backends.sim.kernel import Kernel, Suspend, Task
from flockstep.backends.sim.mail import Mail
from flockstep.backends.sim.meetings import Meetings
from flockstep.backends.sim.network import Network
from flockstep.backends.sim.node import SimNode
from flockstep.backends.sim.recorder import Recorder
from flockstep.backends.sim.training import TrainingNode
from flockstep.backends.sim.wires import Wires
from flockstep.errors import FlockstepError
from flockstep.node import OptimizerFactory, stream
from flockstep.strategy import Strategy, describe
from flockstep.trace import Row, Trace
from flockstep.workloads.workload import Workload


class World:
    """Everything the virtual nodes of one run share."""

    def __init__(self, *, size: int, steps: int, every: int, seed: int) -> None:
        self.size, self.steps, self.every, self.seed = size, steps, every, seed
        self.kernel = Kernel(stream(seed, 0, "ties"))
        self.nodes: list[SimNode] = []
        self.wires: Wires
        self.meetings: Meetings
        self.mail: Mail
        self.recorder: Recorder

    def computing(self, seconds: float) -> Callable[[Task], None]:
        """Suspend for a while that counts as computing."""
        kernel = self.kernel

        def begin(task: Task) -> None:
            task.mark("computing")
            kernel.at(kernel.now + seconds, kernel.resume, task)

        return begin

    def crash(self, rank: int) -> None:
        """A node dies now."""
        node = self.nodes[rank]
        if node.alive:
            node.alive = False
            node.tally.seconds = self.kernel.now
            self.kernel.cancel(node)
            self.meetings.lose(rank)
            self.mail.lose(rank)
            self.recorder.lose()

    async def life(self, node: SimNode, strategy: Strategy, start: float) -> None:
        """A node's whole run."""
        await Suspend(lambda task: self.kernel.at(start, self.kernel.resume, task))
        await strategy.run(node)
        node.tally.seconds = self.kernel.now
        self.recorder.finish(node)


def simulate(
    strategy: Strategy,
    workload: Workload,
    *,
    nodes: int,
    steps: int = 100,
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
    """Run a strategy on virtual nodes and a virtual clock. One seed, one outcome, to the bit.

    Each node trains on its own shard of ``workload`` for ``steps`` steps with its own ``optimizer``. ``network`` says
    how long messages take (None: no time), ``compute`` how long gradients take (None: no time), ``faults`` what goes
    wrong. Nodes start at moments spread over ``start_skew`` (one gradient's time unless given), and what happens at one
    moment happens in random order: a program that relies on luck fails here first. The loss of the average model is
    recorded every ``record_every`` steps (about 20 times unless given); ``on_row`` sees each record as it comes.
    ``timeout``, in virtual time, is how long an ``ask`` waits.
    """
    check.whole("simulate", "nodes", nodes)
    check.whole("simulate", "steps", steps)
    check.whole("simulate", "seed", seed, at_least=0)
    check.has("simulate", "strategy", strategy, "run", kind="a strategy such as LocalSGD(period=8)")
    check.has("simulate", "workload", workload, "start", "gradient", "loss", "shard", kind="a workload")
    every = max(1, steps // 20) if record_every is None else check.whole("simulate", "record_every", record_every)
    if compute is not None:
        compute.check_size(nodes)
    world = World(size=nodes, steps=steps, every=every, seed=seed)
    world.wires = Wires(world.kernel, network, nodes)
    world.meetings = Meetings(world.kernel, world.wires, nodes)
    world.mail = Mail(world.kernel, world.wires, world.nodes, units.seconds(timeout, "simulate.timeout"))
    for rank in range(nodes):
        clock = Clock(compute, rank, stream(seed, rank, "clock"))
        world.nodes.append(TrainingNode(world, rank, clock, workload.shard(rank, nodes), optimizer))
    # Of the whole problem, whichever shard is asked; but the number of nodes may be part of the problem.
    world.recorder = Recorder(world, workload.shard(0, nodes), on_row)
    _declare(world, faults)
    skew = units.seconds(
        start_skew if start_skew is not None else compute.step if compute else 0.0, "simulate.start_skew"
    )
    _begin(world, strategy, skew)
    try:
        world.kernel.run()
    except FlockstepError as error:
        error.trace = _trace(world, strategy)
        raise
    return _trace(world, strategy)


def _begin(world: World, strategy: Strategy, skew: float) -> None:
    starts = skew * stream(world.seed, 0, "skew").random(world.size)
    for node, start in zip(world.nodes, starts, strict=True):
        world.kernel.start(world.life(node, strategy, float(start)), node, main=True)


def _declare(world: World, faults: Sequence[Fault]) -> None:
    for fault in faults:
        check.ranks("simulate", "faults", {fault.node: fault}, world.size)
        if isinstance(fault, Crash):
            world.kernel.at(units.seconds(fault.at), world.crash, fault.node)
        elif isinstance(fault, Slowdown):
            world.nodes[fault.node].slowdowns.append(fault)


def _trace(world: World, strategy: Strategy) -> Trace:
    for node in world.nodes:
        if node.rank not in world.kernel.returned and node.alive:
            node.tally.seconds = world.kernel.now
        if unread := world.mail.unread(node.rank):
            node.tally.counts["unread messages"] = unread
    models = {node.rank: node.params for node in world.nodes if node.alive}
    return Trace(describe(strategy), world.recorder.rows, [node.tally for node in world.nodes], models)
