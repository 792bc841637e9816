"""A virtual node: the verbs, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from flockstep import check
from flockstep.backends.sim.cluster.compute import Clock
from flockstep.backends.sim.cluster.fault_schedule import Spans, after
from flockstep.backends.sim.kernel import Suspend, Task
from flockstep.elastic import SENDS_TO_NEIGHBOURS
from flockstep.errors import FlockstepError
from flockstep.faults import Slowdown
from flockstep.guard import Guarded
from flockstep.message import Message
from flockstep.node import Channels, Handler, Pending, stream
from flockstep.trace import NodeReport

if TYPE_CHECKING:
    from flockstep.backends.sim.views import LiveCheckpoint
    from flockstep.backends.sim.world import World

T = TypeVar("T")


class SimNode(Guarded):
    """One of the virtual nodes of a World."""

    program: Callable[[], Awaitable[Any]]
    """What it runs, from the beginning."""
    one_sided = False
    """Whether its strategy uses no collectives."""
    left_at: float | None = None
    """When it was done, though it may have waited for others since."""

    def __init__(self, world: World, rank: int, clock: Clock) -> None:
        self.rank, self.size, self.step_count, self.alive = rank, world.size, 0, True
        self.rng = stream(world.seed, rank, "codec")
        self.tally: NodeReport = NodeReport(rank)
        self.timeline = world.timeline
        self.kept, self.kept_before = {}, {}
        self.slowdowns: list[Slowdown] = []
        self.pauses: Spans = ()
        self.begun: list[tuple[str, int, Task]] = []
        """Rounds that were begun in the background, in elastic runs."""
        self.first_step: float = 0
        """The step it began with: who comes later has not seen those before."""
        self.channels = Channels(rank)
        self.world, self._clock = world, clock
        self.elastic = world.views is not None

    def computing(self, factor: float = 1.0) -> Suspend:
        """Let the time of one gradient pass."""
        seconds, now = factor * self._clock.gradient(), self.world.kernel.now
        for slowdown in self.slowdowns:
            seconds *= slowdown.factor_at(now)
        return Suspend(self.world.computing(after(self.pauses, now, seconds) if self.pauses else now + seconds))

    def anew(self) -> SimNode:
        """What comes back after a crash: this node as it began."""
        raise NotImplementedError("a node in a function of the user's own cannot begin anew")

    def take_over(self, checkpoint: LiveCheckpoint) -> bool:
        """Be where another node was; whether there is anything left to do."""
        raise NotImplementedError("a node in a function of the user's own cannot begin anew")

    async def mean(self, v: Tensor, channel: str = "model") -> Tensor:
        self.channels.check(channel, v)
        self.check_finite(v, f"what was brought to mean({channel!r})")
        result: Tensor = await self.world.meetings.mean(self, v.detach().clone(), channel)
        return result

    async def exchange(self, messages: Sequence[Message], channel: str = "exchange") -> list[Message]:
        if len(messages) != self.size:
            raise ValueError(f"exchange needs one message per node, {self.size}, got {len(messages)}")
        copies = [message.copy() for message in messages]
        result: list[Message] = await self.world.meetings.exchange(self, copies, channel)
        return result

    def responds(self, now: float) -> bool:
        """Whether it lives, and does not stand still."""
        return self.alive and after(self.pauses, now) == now

    def rounds_under_way(self) -> list[tuple[str, int]]:
        """Channel and number of rounds in the background whose results this node's program has not taken yet."""
        self.begun = [begun for begun in self.begun if not begun[2].joined]
        return [(channel, round) for channel, round, _ in self.begun]

    def answer(self, topic: str, handler: Handler) -> None:
        self.world.mail.answer(self, topic, handler)

    async def ask(self, peer: int, topic: str, message: Message) -> Message:
        reply: Message = await self.world.mail.ask(self, self._checked(peer), topic, message.copy())
        return reply

    def send(self, peer: int, message: Message) -> None:
        if self.elastic and not self.one_sided:
            raise FlockstepError(SENDS_TO_NEIGHBOURS)
        self.world.mail.send(self, self._checked(peer), message.copy())

    async def receive(self, peer: int) -> Message:
        message: Message = await self.world.mail.receive(self, self._checked(peer))
        return message

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Pending[T]:
        return self.world.kernel.start(coroutine, self, main=False)

    async def linger(self) -> None:
        await Suspend(self.world.lingering())

    def peers(self) -> tuple[int, ...]:
        return tuple(n.rank for n in self.world.nodes if n.alive and n is not self)

    def count(self, name: str, amount: int | Tensor = 1) -> None:
        self.tally.count(name, amount)

    def spent(self, kind: str, begin: float, end: float) -> None:
        """Book virtual seconds as computing, waiting or talking."""
        setattr(self.tally, kind, getattr(self.tally, kind) + (end - begin))
        if self.timeline is not None:
            self.timeline.spend(self.rank, kind, begin, end)

    def sent(self, peer: int, nbytes: int) -> None:
        """Book bytes that leave for another node."""
        self.tally.bytes_sent += nbytes
        if self.timeline is not None and nbytes:
            self.timeline.send(self.rank, peer, nbytes)

    def _checked(self, peer: int) -> int:
        return check.peer(peer, self.rank, self.size)
