"""A real node that trains a workload, and measures losses with its clock stopped."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable

import torch
from torch import Tensor

from flockstep.backends.real.drive import Block
from flockstep.backends.real.fabric import Fabric
from flockstep.backends.real.node import RealNode
from flockstep.errors import Diverged
from flockstep.node import OptimizerFactory, stream
from flockstep.trace import Row
from flockstep.workloads.workload import Workload


class TrainingNode(RealNode):
    """A node whose gradients are a workload's."""

    def __init__(
        self,
        fabric: Fabric,
        rank: int,
        size: int,
        *,
        workload: Workload,
        optimizer: OptimizerFactory,
        steps: int,
        record_every: int,
        seed: int,
        on_row: Callable[[Row], None] | None = None,
    ) -> None:
        super().__init__(fabric, rank, size, seed)
        self.params = workload.start()
        self.optimizer = optimizer([self.params])
        self.rows: list[Row] = []
        self.total_steps, self.record_every = steps, record_every
        self._workload, self._on_row = workload, on_row
        self._data = stream(seed, rank, "data")

    def steps(self) -> AsyncIterator[int]:
        """As many as were asked for."""
        return _Steps(self)

    async def gradient(self, x: Tensor) -> Tensor:
        """A gradient of this node's shard."""

        def compute() -> Tensor:
            with self.spending("computing"):
                return self._workload.gradient(x, self._data)

        self.tally.gradients += 1
        g: Tensor = await Block(compute)
        return g

    async def step(self, g: Tensor | None) -> None:
        """The torch optimizer's step on the flat vector."""
        if g is None:
            self.tally.skipped += 1
            return
        with self.spending("computing"):
            self.params.grad = g
            self.optimizer.step()
            self.params.grad = None

    def finish(self) -> None:
        """Leave together, and take the last record on the way out."""
        self.rest()
        self.record(self.step_count)
        self.close()

    def record(self, step: int) -> None:
        """Measure the loss of the average model, all nodes together, with the clocks stopped."""
        before = time.perf_counter()
        size = torch.tensor([float(self.tally.bytes_sent)], dtype=torch.float64)
        average, sent = self._unseen_mean(self.params), self._unseen_mean(size)
        distance = (self.params - average).square().sum().double().reshape(1)
        spread = self._unseen_mean(distance)
        # Everybody waits for the verdict of node 0, so that a loss that is not finite ends all nodes alike.
        loss = self._workload.loss(average) if self.rank == 0 else 0.0
        loss = self.size * float(self._unseen_mean(torch.tensor([loss], dtype=torch.float64)))
        self._paused += time.perf_counter() - before
        if not math.isfinite(loss):
            raise Diverged(f"the loss of the average model is {loss} at step {step}", time=self.now)
        self.rows.append(Row(self.now, step, loss, float(sent), float(spread)))
        if self._on_row is not None and self.rank == 0:
            self._on_row(self.rows[-1])

    def _unseen_mean(self, v: Tensor) -> Tensor:
        # Not part of the algorithm: neither its bytes nor its time are counted.
        channel = f"record {v.numel()} {v.dtype}"
        round = self.channels.next_round(channel)
        future = self._fabric.mean(v.clone(), channel, round)
        result: Tensor = self._fabric.wait(future, f"record of the loss, number {round}", channel, round)
        return result


class _Steps:
    """Counts steps, and stops for a record now and then."""

    def __init__(self, node: TrainingNode) -> None:
        self._node = node

    def __aiter__(self) -> _Steps:
        return self

    async def __anext__(self) -> int:
        node, k = self._node, self._node.step_count
        if k >= node.total_steps:
            raise StopAsyncIteration
        if k % node.record_every == 0:
            await Block(lambda: node.record(k))
        node.step_count = node.tally.steps = k + 1
        return k
