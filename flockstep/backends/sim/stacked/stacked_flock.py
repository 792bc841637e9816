"""All virtual nodes of a run, and of many runs, in one: a step of everybody is one step of a matrix.

Vectors are (runs, nodes, dim). Nobody waits here, as all arrive together; what they would have waited is worked out
from a clock per node, as long as only whole rounds cost time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from flockstep.backends.sim.stacked.stacked_clock import Floats, StackedClock
from flockstep.backends.sim.stacked.stacked_draws import StackedDraws
from flockstep.flock import Flock
from flockstep.message import HEADER_BYTES, Message, ring_bytes
from flockstep.node import Channels, Handler, Pending
from flockstep.optimizers import is_plain_sgd
from flockstep.trace import NodeReport
from flockstep.vector import is_finite
from flockstep.workloads.workload import Stacked

T = TypeVar("T")


class NotRowWise(Exception):
    """A program did what a flock cannot do for all nodes at once; it must be run node by node."""


class SimFlock(Flock):
    """The one node of a stacked run."""

    def __init__(
        self,
        stacked: Stacked,
        params: Tensor,
        optimizer: torch.optim.Optimizer,
        draws: StackedDraws,
        times: StackedClock,
        *,
        steps: int,
        begin_step: Callable[[int], None],
    ) -> None:
        self.runs, self.size, _ = params.shape
        self.params, self.optimizer, self.times = params, optimizer, times
        self.step_count, self._total, self._begin_step = 0, steps, begin_step
        self.sent = np.zeros(self.size)
        """Bytes that each node of any run has sent; received are as many, as weights are symmetric."""
        self.kept, self.kept_before = {}, {}
        self._stacked, self._draws, self._channels = stacked, draws, Channels(0)
        self._numbers: dict[str, Any] = {}
        self._named: set[str] = set()
        self._plain = is_plain_sgd(optimizer)
        self._equal = np.full((1, self.size), 1 / self.size)
        self._mixing: tuple[Sequence[dict[int, float]], Tensor, Floats] | None = None

    # What row-wise programs use -----------------------------------------------------------------------------------

    def steps(self) -> AsyncIterator[int]:
        return _Steps(self)

    def begin(self) -> int | None:
        """The number of the step that begins now; None when all are done."""
        k = self.step_count
        if k >= self._total:
            return None
        self._begin_step(k)
        self.step_count = k + 1
        return k

    async def gradient(self, x: Tensor) -> Tensor:
        g = self._stacked.gradient(x, self._draws.next())
        self.times.compute()
        # A product of NumPy's: on matrices as small as these, torch takes longer to begin than to end.
        flat = g.numpy().reshape(-1)
        if not math.isfinite(flat @ flat) and not is_finite(g) and is_finite(x):
            self._refuse("meets a gradient that is not finite, which is one node's own affair")
        return g

    async def step(self, g: Tensor | None) -> None:
        if g is None:
            self._refuse("skips a step, which is one node's own affair")
        if self._plain:
            # What torch's SGD does then, without the checks that take it longer than the step itself.
            self.params.add_(g, alpha=-self.optimizer.param_groups[0]["lr"])
            return
        self.params.grad = g
        self.optimizer.step()
        self.params.grad = None

    async def mean(self, v: Tensor, channel: str = "model") -> Tensor:
        self._channels.check(channel, v)
        nbytes = ring_bytes(self._bytes_of_one(v), self.size)
        self.sent += nbytes
        self.times.meet(nbytes)
        # As a product, and by NumPy: on matrices as small as these, any other way takes longer.
        mean = np.matmul(self._equal.astype(v.numpy().dtype, copy=False), v.numpy())
        return torch.from_numpy(mean).expand_as(v).clone()

    async def mix(self, v: Tensor, rows: Sequence[dict[int, float]]) -> Tensor:
        if self.times.over_a_network:
            self._refuse("mixes with neighbours over a network, where their messages share links")
        if self._mixing is None or self._mixing[0] is not rows:
            weights, peers = _matrix(rows, v.dtype)
            self._mixing = rows, weights, peers
        _, weights, peers = self._mixing
        self.sent += peers * (HEADER_BYTES + self._bytes_of_one(v))
        self.times.meet_neighbours(weights)
        return weights @ v

    def count(self, name: str, amount: int | Tensor = 1) -> None:
        self._numbers[name] = self._numbers.get(name, 0) + amount
        if not isinstance(amount, Tensor):
            self._named.add(name)

    # What they do not ----------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:  # type: ignore[override]
        self._refuse("asks for its rank")

    @property
    def rng(self) -> np.random.Generator:  # type: ignore[override]
        self._refuse("draws random numbers")

    def answer(self, topic: str, handler: Handler) -> None:
        self._refuse("answers questions")

    async def ask(self, peer: int, topic: str, message: Message) -> Message:
        self._refuse("asks a peer")

    async def exchange(self, messages: Sequence[Message], channel: str = "exchange") -> list[Message]:
        self._refuse("exchanges messages")

    def send(self, peer: int, message: Message) -> None:
        self._refuse("sends to a peer")

    async def receive(self, peer: int) -> Message:
        self._refuse("receives from a peer")

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Pending[T]:
        coroutine.close()
        self._refuse("works in the background")

    async def linger(self) -> None:
        self._refuse("lingers")

    def peers(self) -> tuple[int, ...]:
        self._refuse("asks who its peers are")

    def _refuse(self, what: str) -> NoReturn:
        raise NotRowWise(f"the program {what}")

    # ----------------------------------------------------------------------------------------------------------------

    def reports(self, run: int) -> list[NodeReport]:
        """What each node of a run did."""
        return [self._report(run, rank) for rank in range(self.size)]

    def _report(self, run: int, rank: int) -> NodeReport:
        times, sent = self.times, int(self.sent[rank])
        report = NodeReport(
            rank, steps=self.step_count, gradients=self.step_count, bytes_sent=sent, bytes_received=sent
        )
        for kind in ("computing", "waiting", "talking"):
            setattr(report, kind, float(getattr(times, kind)[run, rank]))
        report.seconds = float(times.now[run, rank])
        for name, amount in self._numbers.items():
            counted = int(amount[run, rank]) if isinstance(amount, Tensor) else amount
            # As in a node's own report: what was only ever added up unseen is not there if it came to nothing.
            if counted or name in self._named:
                report.counts[name] = counted
        return report

    def _bytes_of_one(self, v: Tensor) -> int:
        return v.nbytes // (self.runs * self.size)


class _Steps:
    __slots__ = ("_flock",)

    def __init__(self, flock: SimFlock) -> None:
        self._flock = flock

    def __aiter__(self) -> _Steps:
        return self

    async def __anext__(self) -> int:
        k = self._flock.begin()
        if k is None:
            raise StopAsyncIteration
        return k


def _matrix(rows: Sequence[dict[int, float]], dtype: torch.dtype) -> tuple[Tensor, Floats]:
    """Weights as a matrix, and how many peers each node has."""
    weights = torch.zeros(len(rows), len(rows), dtype=dtype)
    for rank, row in enumerate(rows):
        for peer, weight in row.items():
            weights[rank, peer] = weight
    return weights, np.array([len(row) - 1 for row in rows], dtype=float)
