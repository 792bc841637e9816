"""A virtual node: the verbs, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from flockstep import check
from flockstep.backends.sim.compute import Clock
from flockstep.backends.sim.faults import Slowdown
from flockstep.backends.sim.kernel import Suspend
from flockstep.message import Message
from flockstep.node import Channels, Handler, Node, OptimizerFactory, Pending, stream
from flockstep.trace import NodeReport
from flockstep.workloads.workload import Workload

if TYPE_CHECKING:
    from flockstep.backends.sim.world import World

T = TypeVar("T")


class SimNode(Node):
    """One of the virtual nodes of a World."""

    def __init__(self, world: World, rank: int, workload: Workload, optimizer: OptimizerFactory, clock: Clock) -> None:
        self.rank, self.size, self.step_count, self.alive = rank, world.size, 0, True
        self.params = workload.start()
        self.optimizer = optimizer([self.params])
        self.rng = stream(world.seed, rank, "codec")
        self.report = NodeReport(rank)
        self.kept: dict[str, Tensor] = {}
        self.slowdowns: list[Slowdown] = []
        self.workload = workload
        self._world, self._clock = world, clock
        self._data = stream(world.seed, rank, "data")
        self.channels = Channels(rank)

    def steps(self) -> AsyncIterator[int]:
        return _Steps(self, self._world)

    async def gradient(self, x: Tensor) -> Tensor:
        g = self.workload.gradient(x, self._data)
        self.report.gradients += 1
        seconds = self._clock.gradient()
        for slowdown in self.slowdowns:
            seconds *= slowdown.factor_at(self._world.kernel.now)
        await Suspend(self._world.computing(seconds))
        return g

    async def step(self, g: Tensor | None) -> None:
        if g is None:
            self.report.skipped += 1
            return
        self.params.grad = g
        self.optimizer.step()
        self.params.grad = None

    async def mean(self, v: Tensor, channel: str = "model") -> Tensor:
        self.channels.check(channel, v)
        result: Tensor = await self._world.meetings.mean(self, v.detach().clone(), channel)
        return result

    async def exchange(self, messages: Sequence[Message], channel: str = "exchange") -> list[Message]:
        if len(messages) != self.size:
            raise ValueError(f"exchange needs one message per node, {self.size}, got {len(messages)}")
        copies = [message.copy() for message in messages]
        result: list[Message] = await self._world.meetings.exchange(self, copies, channel)
        return result

    def answer(self, topic: str, handler: Handler) -> None:
        self._world.mail.answer(self, topic, handler)

    async def ask(self, peer: int, topic: str, message: Message) -> Message:
        reply: Message = await self._world.mail.ask(self, self._checked(peer), topic, message.copy())
        return reply

    def send(self, peer: int, message: Message) -> None:
        self._world.mail.send(self, self._checked(peer), message.copy())

    async def receive(self, peer: int) -> Message:
        message: Message = await self._world.mail.receive(self, self._checked(peer))
        return message

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Pending[T]:
        return self._world.kernel.start(coroutine, self, main=False)

    def peers(self) -> tuple[int, ...]:
        return tuple(n.rank for n in self._world.nodes if n.alive and n is not self)

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        self.kept[name] = tensor
        return tensor

    def count(self, name: str, amount: int = 1) -> None:
        self.report.counts[name] = self.report.counts.get(name, 0) + amount

    def spent(self, kind: str, seconds: float) -> None:
        """Book virtual seconds as computing, waiting or talking."""
        setattr(self.report, kind, getattr(self.report, kind) + seconds)

    def _checked(self, peer: int) -> int:
        return check.peer(peer, self.rank, self.size)


class _Steps:
    """Counts steps, and shows the model to whoever records losses."""

    __slots__ = ("_node", "_world")

    def __init__(self, node: SimNode, world: World) -> None:
        self._node, self._world = node, world

    def __aiter__(self) -> _Steps:
        return self

    async def __anext__(self) -> int:
        node, world = self._node, self._world
        k = node.step_count
        if k >= world.steps:
            raise StopAsyncIteration
        if k % world.every == 0:
            world.recorder.show(node, k)
        node.step_count = node.report.steps = k + 1
        return k
