"""A real node: the verbs on a Fabric, with a real clock."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.backends.real.drive import Background, Block
from flockstep.backends.real.fabric import Fabric
from flockstep.errors import Diverged, located
from flockstep.message import Message, ring_bytes
from flockstep.node import Channels, Handler, Node, OptimizerFactory, Pending, stream
from flockstep.trace import NodeReport, Row
from flockstep.workloads.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class RealNode(Node):
    """One node of a real run, on a thread or a process of its own."""

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
        self.rank, self.size, self.step_count = rank, size, 0
        self.params = workload.start()
        self.optimizer = optimizer([self.params])
        self.rng = stream(seed, rank, "codec")
        self.report = NodeReport(rank)
        self.kept: dict[str, Tensor] = {}
        self.rows: list[Row] = []
        self.channels = Channels(rank)
        self.total_steps, self.record_every = steps, record_every
        self._fabric, self._workload, self._on_row = fabric, workload, on_row
        self._data = stream(seed, rank, "data")
        self._background: list[Background[Any]] = []
        self._began, self._paused = time.perf_counter(), 0.0

    @property
    def now(self) -> float:
        """Seconds of training so far; measuring losses does not count."""
        return time.perf_counter() - self._began - self._paused

    def steps(self) -> AsyncIterator[int]:
        return _Steps(self)

    async def gradient(self, x: Tensor) -> Tensor:
        def compute() -> Tensor:
            with self._spending("computing"):
                return self._workload.gradient(x, self._data)

        self.report.gradients += 1
        g: Tensor = await Block(compute)
        return g

    async def step(self, g: Tensor | None) -> None:
        if g is None:
            self.report.skipped += 1
            return
        with self._spending("computing"):
            self.params.grad = g
            self.optimizer.step()
            self.params.grad = None

    async def mean(self, v: Tensor, channel: str = "model") -> Tensor:
        self.channels.check(channel, v)
        nbytes = ring_bytes(v.nbytes, self.size)
        self.report.bytes_sent += nbytes
        self.report.bytes_received += nbytes
        result: Tensor = await self._meet(self._fabric.mean, v.detach().clone(), "mean", channel)
        return result

    async def exchange(self, messages: Sequence[Message], channel: str = "exchange") -> list[Message]:
        if len(messages) != self.size:
            raise ValueError(f"exchange needs one message per node, {self.size}, got {len(messages)}")
        self.report.bytes_sent += sum(m.nbytes for to, m in enumerate(messages) if to != self.rank)
        copies = [message.copy() for message in messages]
        received: list[Message] = await self._meet(self._fabric.exchange, copies, "exchange", channel)
        self.report.bytes_received += sum(m.nbytes for by, m in enumerate(received) if by != self.rank)
        return received

    def _fail(self, error: Exception) -> None:
        # In a handler or a background task: the main task learns of it at its next wait.
        self._fabric.fail(located(error, self.rank, self.now))

    def _meet(self, begin: Callable[..., Any], thing: Any, verb: str, channel: str) -> Block:
        # Begun here, in the program's own order; only the waiting is left to whichever thread drives.
        round = self.channels.next_round(channel)
        future = begin(thing, channel, round)

        def wait() -> Any:
            with self._spending("talking"):
                return self._fabric.wait(future, f"{verb}({channel!r}), round {round}", channel, round)

        return Block(wait)

    def answer(self, topic: str, handler: Handler) -> None:
        def guarded(peer: int, message: Message) -> Message:
            try:
                return handler(peer, message)
            except Exception as error:
                self._fail(error)
                raise

        self._fabric.answer(topic, guarded)

    async def ask(self, peer: int, topic: str, message: Message) -> Message:
        check.peer(peer, self.rank, self.size)
        copy = message.copy()
        self.report.bytes_sent += copy.nbytes

        def wait() -> Message:
            with self._spending("talking"):
                return self._fabric.ask(peer, topic, copy)

        reply: Message = await Block(wait)
        self.report.bytes_received += reply.nbytes
        return reply

    def send(self, peer: int, message: Message) -> None:
        check.peer(peer, self.rank, self.size)
        self.report.bytes_sent += message.nbytes
        self._fabric.send(peer, message.copy())

    async def receive(self, peer: int) -> Message:
        check.peer(peer, self.rank, self.size)

        def wait() -> Message:
            with self._spending("waiting"):
                return self._fabric.receive(peer)

        message: Message = await Block(wait)
        self.report.bytes_received += message.nbytes
        return message

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Pending[T]:
        background = Background(coroutine, self._fail)
        self._background.append(background)
        return background

    def peers(self) -> tuple[int, ...]:
        return self._fabric.peers()

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        self.kept[name] = tensor
        return tensor

    def count(self, name: str, amount: int = 1) -> None:
        self.report.counts[name] = self.report.counts.get(name, 0) + amount

    def finish(self) -> None:
        """The program has returned: wait for what it left in the background, leave together, take the last record."""
        for background in self._background:
            background.wait()
        self.report.seconds = self.now
        self._fabric.leave(self.channels.rounds)
        self.record(self.step_count)

    def record(self, step: int) -> None:
        """Measure the loss of the average model, all nodes together, with the clocks stopped."""
        before = time.perf_counter()
        size = torch.tensor([float(self.report.bytes_sent)], dtype=torch.float64)
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

    @contextmanager
    def _spending(self, kind: str) -> Iterator[None]:
        before = time.perf_counter()
        try:
            yield
        finally:
            setattr(self.report, kind, getattr(self.report, kind) + time.perf_counter() - before)


class _Steps:
    """Counts steps, and stops for a record now and then."""

    def __init__(self, node: RealNode) -> None:
        self._node = node

    def __aiter__(self) -> _Steps:
        return self

    async def __anext__(self) -> int:
        node, k = self._node, self._node.step_count
        if k >= node.total_steps:
            raise StopAsyncIteration
        if k % node.record_every == 0:
            await Block(lambda: node.record(k))
        node.step_count = node.report.steps = k + 1
        return k
