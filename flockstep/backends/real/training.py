"""A real node that trains a workload, and measures losses with its clock stopped."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import torch
from torch import Tensor

from flockstep.backends.loop import serialization, snapshots
from flockstep.backends.real.crew.crew import Crew, gather
from flockstep.backends.real.drive import Block, drive
from flockstep.backends.real.fabric import Fabric
from flockstep.backends.real.node import RealNode
from flockstep.backends.real.recording import Recording
from flockstep.budget import Budget, Ledger
from flockstep.errors import Diverged, LeftOut
from flockstep.node import OptimizerFactory, stream
from flockstep.strategy import Strategy
from flockstep.trace import Row
from flockstep.workloads.workload import Workload, tell_progress, tensors_of


class TrainingNode(RealNode):
    """A node whose gradients are a workload's."""

    workload: Workload

    def __init__(
        self,
        fabric: Fabric,
        rank: int,
        size: int,
        *,
        workload: Workload,
        optimizer: OptimizerFactory,
        steps: int | Budget,
        record_every: int,
        seed: int,
        timeout: float,
        on_row: Callable[[Row], None] | None = None,
        one_sided: bool = False,
        keeping: Recording = Recording(),
        strategy: str = "",
        stop: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(fabric, rank, size, seed, keeping, strategy)
        self.params = workload.start()
        self.optimizer = optimizer([self.params])
        self.total_steps, self.record_every = steps, record_every
        self.planned = steps if isinstance(steps, int) else None
        self._optimizer, self._seed, self._timeout = optimizer, seed, timeout
        self._crew: Crew | None = None
        self.workload, self._on_row = workload, on_row
        self._data = stream(seed, rank, "data")
        self._one_sided, self._stop = one_sided or self.elastic, stop
        self.ledger = Ledger(self, steps, together=not self._one_sided) if isinstance(steps, Budget) else None
        if self._one_sided:
            snapshots.answer(self, self.answer_unseen)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Model, optimizer, steps, and what the strategy keeps of all."""
        tensors = {"model": self.params.clone()}
        tensors |= {f"kept/{name}": kept.clone() for name, kept in self.kept.items() if name not in self.own}
        spent = [] if self.ledger is None else list(self.ledger.entries().items())
        form = serialization.taken_apart(self.optimizer.state_dict(), "optimizer", tensors)
        return tensors, {"step": self.step_count, "optimizer": form, "spent": spent}

    def take_over(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Be where another node was."""
        self.params.copy_(tensors["model"])
        self.kept_before = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("kept/")}
        self.optimizer.load_state_dict(serialization.put_together(plain["optimizer"], tensors))
        self.step_count = self.tally.steps = int(plain["step"])
        if self.ledger is not None:
            self.ledger.learn(dict(plain["spent"]))

    def train(self, strategy: Strategy) -> None:
        """Run a strategy to its end; in an elastic run from where the others are, whenever they went on without us."""
        if self.part is not None and self.part.fabric.newcomer:
            self.part.come_in()
        while True:
            try:
                drive(strategy.run(self))
                return
            except LeftOut:
                if self.part is None:
                    raise
                self.count("times left out")
                with self.spending("waiting"):
                    self.part.come_in()

    def steps(self) -> AsyncIterator[int]:
        """As many as were asked for, of this node or of all together."""
        return _Steps(self)

    @property
    def stopped(self) -> bool:
        """Whether it was told to take no more steps."""
        return self._stop is not None and self._stop()

    @property
    def trained(self) -> int:
        """As the workload knows it: all of it, or so many numbers that statistics follow."""
        return int(getattr(self.workload, "trained", self.params.numel()))

    def tensors(self, v: Tensor) -> list[Tensor]:
        """As the workload knows them."""
        return tensors_of(self.workload, v)

    async def gradient(self, x: Tensor) -> Tensor:
        """A gradient of this node's shard."""

        def compute() -> Tensor:
            with self.spending("computing"):
                return self.workload.gradient(x, self._data)

        self.tally.gradients += 1
        return self.guarded(await Block(compute))

    async def step(self, g: Tensor | None) -> None:
        """The torch optimizer's step on the flat vector."""
        g = self.or_skip(g)
        if g is None:
            self.tally.skipped += 1
            return
        with self.spending("computing"):
            self.params.grad = g
            self.optimizer.step()
            self.params.grad = None

    async def work(self, threads: int, steps: int) -> int:
        """A crew of real threads or processes."""
        counts = self._counts(threads, steps)
        k, total = self.step_count, sum(counts)
        if total == 0:
            return 0
        crew = self._crew = self._crew or self._gather(threads)
        if -k % self.record_every < total:
            await Block(lambda: self.record(k))

        def compute() -> None:
            with self.spending("computing"):
                crew.work(counts)

        await Block(compute)
        self.step_count = self.tally.steps = k + total
        self.tally.gradients += total
        return total

    def _gather(self, threads: int) -> Crew:
        # The vector may move to shared memory: nobody must be reading it meanwhile.
        with self.undisturbed():
            return gather(
                self.workload,
                self.params,
                self._optimizer,
                threads=threads,
                seed=self._seed,
                rank=self.rank,
                timeout=self._timeout,
            )

    def _counts(self, threads: int, steps: int) -> list[int]:
        """How many steps each member takes: fewer where the run ends."""
        if self.stopped:
            return [0] * threads
        if self.ledger is not None:
            counts = [0 if self.ledger.progress >= 1 else steps] * threads
            for _ in range(sum(counts)):
                self.ledger.step()
            return counts
        left = min(threads * steps, self.total_steps - self.step_count)  # type: ignore[operator]
        return [left // threads + (member < left % threads) for member in range(threads)]

    def dismiss(self) -> None:
        """No crew is left behind."""
        if self._crew is not None:
            self._crew.close()

    def finish(self) -> None:
        """Leave together, and take the last record on the way out; by asking only while all still answer."""
        if self._one_sided:
            self.record(self.step_count)
        self.rest()
        if not self._one_sided:
            self.record(self.step_count)
        self.close()

    def record(self, step: int) -> None:
        """Measure the loss of the average model, with the clock stopped."""
        before = time.perf_counter()
        measured = self._measure_by_asking() if self._one_sided else self._measure_together()
        self._paused += time.perf_counter() - before
        if measured is None:
            return
        loss, sent, spread = measured
        if not math.isfinite(loss):
            raise Diverged(f"the loss of the average model is {loss} at step {step}", time=self.now)
        self.rows.append(Row(self.now, step, loss, sent, spread))
        if self._one_sided or self.rank == 0:
            for tell in (self._on_row, None if self.journal is None else self.journal.row):
                if tell is not None:
                    tell(self.rows[-1])

    def _measure_by_asking(self) -> tuple[float, float, float] | None:
        """One node alone, the lowest that lives, asks the others, who do not stop for it."""
        if self.rank != min((self.rank, *self.peers())):
            return None
        # Past the node's own verbs: not part of the algorithm, so its bytes are not counted.
        gathered = snapshots.of_the_living(self, self.fabric.ask)
        loss = self.workload.loss(gathered.mean.to(self.params.dtype))
        return loss, float(self.tally.bytes_sent), gathered.spread

    def _measure_together(self) -> tuple[float, float, float]:
        """All nodes wait for each other."""
        size = torch.tensor([float(self.tally.bytes_sent)], dtype=torch.float64)
        average, sent = self._unseen_mean(self.params), self._unseen_mean(size)
        distance = (self.params - average).square().sum().double().reshape(1)
        spread = self._unseen_mean(distance)
        # Everybody waits for the verdict of node 0, so that a loss that is not finite ends all nodes alike.
        loss = self.workload.loss(average) if self.rank == 0 else 0.0
        loss = self.size * float(self._unseen_mean(torch.tensor([loss], dtype=torch.float64)))
        return loss, float(sent), float(spread)

    def _unseen_mean(self, v: Tensor) -> Tensor:
        # Not part of the algorithm: neither its bytes nor its time are counted.
        channel = f"record {v.numel()} {v.dtype}"
        round = self.channels.next_round(channel)
        future = self.fabric.mean(v.clone(), channel, round)
        result: Tensor = self.fabric.wait(future, f"record of the loss, number {round}", channel, round)
        return result


class _Steps:
    """Counts steps, and stops for a record now and then."""

    def __init__(self, node: TrainingNode) -> None:
        self._node = node

    def __aiter__(self) -> _Steps:
        return self

    async def __anext__(self) -> int:
        node, k = self._node, self._node.step_count
        progress = k / node.total_steps if node.ledger is None else node.ledger.progress  # type: ignore[operator]
        if progress >= 1 or node.stopped:
            raise StopAsyncIteration
        tell_progress(node.workload, progress)
        if node.ledger is not None:
            node.ledger.step()
        if k % node.record_every == 0:
            await Block(lambda: node.record(k))
        node.glance()
        if node.part is not None:
            node.part.at_boundary()
        node.step_count = node.tally.steps = k + 1
        return k
