"""A virtual node that trains a workload."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from flockstep.backends.sim.cluster.compute import Clock
from flockstep.backends.sim.crew import Crew
from flockstep.backends.sim.node import SimNode
from flockstep.budget import Budget, Ledger
from flockstep.node import OptimizerFactory, stream
from flockstep.strategy import Strategy, is_one_sided
from flockstep.workloads.workload import Workload, tell_progress, tensors_of

if TYPE_CHECKING:
    from flockstep.backends.sim.views import LiveCheckpoint
    from flockstep.backends.sim.world import World


class TrainingNode(SimNode):
    """A node whose gradients are a workload's."""

    workload: Workload

    def __init__(
        self,
        world: World,
        rank: int,
        clock: Clock,
        strategy: Strategy,
        workload: Workload,
        optimizer: OptimizerFactory,
    ) -> None:
        super().__init__(world, rank, clock)
        self.workload = workload.shard(rank, world.size)
        self.params = self.workload.start()
        self.optimizer = optimizer([self.params])
        self.program = partial(strategy.run, self)
        self.data = stream(world.seed, rank, "data")
        self.one_sided = is_one_sided(strategy)
        self._given = strategy, workload, optimizer
        self._crew: Crew | None = None
        self.timed = clock.takes_time
        """Whether gradients take virtual time."""
        self.planned = world.steps if isinstance(world.steps, int) else None
        self.ledger = (
            Ledger(self, world.steps, together=not is_one_sided(strategy)) if isinstance(world.steps, Budget) else None
        )

    def anew(self) -> TrainingNode:
        """The next incarnation: made as the first was, on the same machine, in the same report."""
        node = TrainingNode(self.world, self.rank, self._clock, *self._given)
        node.incarnation = self.incarnation + 1
        node.slowdowns, node.pauses, node.tally = self.slowdowns, self.pauses, self.tally
        return node

    def take_over(self, checkpoint: LiveCheckpoint) -> bool:
        """Model, optimizer, steps and what the strategy keeps are those of the node that gave them."""
        self.params.copy_(checkpoint.params)
        # An optimizer takes tensors as they are, and others may be given the same checkpoint.
        self.optimizer.load_state_dict(copy.deepcopy(checkpoint.optimizer))
        self.kept_before = {name: tensor.clone() for name, tensor in checkpoint.kept.items()}
        self.step_count = self.tally.steps = checkpoint.step_count
        self.channels.rounds, self.view = dict(checkpoint.taken), checkpoint.view
        return not checkpoint.over

    def steps(self) -> AsyncIterator[int]:
        """As many as were asked for, of this node or of all together."""
        return _Steps(self, self.world)

    @property
    def trained(self) -> int:
        """As the workload knows it: all of it, or so many numbers that statistics follow."""
        return int(getattr(self.workload, "trained", self.params.numel()))

    def tensors(self, v: Tensor) -> list[Tensor]:
        """As the workload knows them."""
        return tensors_of(self.workload, v)

    async def work(self, threads: int, steps: int) -> int:
        """A crew whose members take turns at awaits."""
        if self._crew is None:
            self._crew = Crew(self, threads)
        return await self._crew.work(steps)

    async def gradient(self, x: Tensor) -> Tensor:
        """A gradient of this node's shard, computed now and there when its time has passed."""
        g = self.workload.gradient(x, self.data)
        self.tally.gradients += 1
        await self.computing()
        return self.guarded(g)

    async def step(self, g: Tensor | None) -> None:
        """The torch optimizer's step on the flat vector; takes no virtual time of its own."""
        g = self.or_skip(g)
        if g is None:
            self.tally.skipped += 1
            return
        self.params.grad = g
        self.optimizer.step()
        self.params.grad = None


class _Steps:
    """Counts steps, and shows the model to whoever records losses."""

    __slots__ = ("_node", "_world")

    def __init__(self, node: TrainingNode, world: World) -> None:
        self._node, self._world = node, world

    def __aiter__(self) -> _Steps:
        return self

    async def __anext__(self) -> int:
        node, world = self._node, self._world
        k = node.step_count
        if world.views is not None:
            world.views.at_boundary(node)
        progress = k / world.steps if node.ledger is None else node.ledger.progress  # type: ignore[operator]
        if progress >= 1:
            raise StopAsyncIteration
        tell_progress(node.workload, progress)
        if node.ledger is not None:
            node.ledger.step()
        world.recorder.begin_step(node, k)  # type: ignore[union-attr]
        node.step_count = node.tally.steps = k + 1
        return k
