"""A real node: the verbs on a Fabric, with a real clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from torch import Tensor

from flockstep import check
from flockstep.backends.real.drive import Background, Block
from flockstep.backends.real.fabric import Fabric
from flockstep.backends.real.mailbox.memory import Buffers
from flockstep.errors import located
from flockstep.message import Message, ring_bytes
from flockstep.node import Channels, Handler, Node, Pending, stream
from flockstep.trace import NodeReport

T = TypeVar("T")


class RealNode(Node):
    """One node of a real run, on a thread or a process of its own."""

    def __init__(self, fabric: Fabric, rank: int, size: int, seed: int) -> None:
        self.rank, self.size, self.step_count = rank, size, 0
        self.rng = stream(seed, rank, "codec")
        self.tally = NodeReport(rank)
        self.kept, self.kept_before = {}, {}
        self.channels = Channels(rank)
        self.fabric, self._copies = fabric, Buffers()
        self._background: list[Background[Any]] = []
        self._began, self._paused = time.perf_counter(), 0.0

    @property
    def now(self) -> float:
        """Seconds of training so far; measuring losses does not count."""
        return time.perf_counter() - self._began - self._paused

    async def mean(self, v: Tensor, channel: str = "model") -> Tensor:
        self.channels.check(channel, v)
        nbytes = ring_bytes(v.nbytes, self.size)
        self.tally.bytes_sent += nbytes
        self.tally.bytes_received += nbytes
        result: Tensor = await self._meet(self.fabric.mean, self._copies.copy(v), "mean", channel)
        return result

    async def exchange(self, messages: Sequence[Message], channel: str = "exchange") -> list[Message]:
        if len(messages) != self.size:
            raise ValueError(f"exchange needs one message per node, {self.size}, got {len(messages)}")
        self.tally.bytes_sent += sum(m.nbytes for to, m in enumerate(messages) if to != self.rank)
        copies = [message.copy() for message in messages]
        received: list[Message] = await self._meet(self.fabric.exchange, copies, "exchange", channel)
        self.tally.bytes_received += sum(m.nbytes for by, m in enumerate(received) if by != self.rank)
        return received

    def _fail(self, error: Exception) -> None:
        # In a handler or a background task: the main task learns of it at its next wait.
        self.fabric.fail(located(error, self.rank, self.now))

    def _meet(self, begin: Callable[..., Any], thing: Any, verb: str, channel: str) -> Block:
        # Begun here, in the program's own order; only the waiting is left to whichever thread drives.
        round = self.channels.next_round(channel)
        future = begin(thing, channel, round)

        def wait() -> Any:
            with self.spending("talking"):
                return self.fabric.wait(future, f"{verb}({channel!r}), round {round}", channel, round)

        return Block(wait)

    def answer(self, topic: str, handler: Handler) -> None:
        def guarded(peer: int, message: Message) -> Message:
            try:
                return handler(peer, message)
            except Exception as error:
                self._fail(error)
                raise

        self.fabric.answer(topic, guarded)

    def undisturbed(self) -> AbstractContextManager[object]:
        return self.fabric.undisturbed()

    async def ask(self, peer: int, topic: str, message: Message) -> Message:
        self._check_peer(peer)
        copy = message.copy()
        self.tally.bytes_sent += copy.nbytes

        def wait() -> Message:
            with self.spending("talking"):
                return self.fabric.ask(peer, topic, copy)

        reply: Message = await Block(wait)
        self.tally.bytes_received += reply.nbytes
        return reply

    def send(self, peer: int, message: Message) -> None:
        self._check_peer(peer)
        self.tally.bytes_sent += message.nbytes
        self.fabric.send(peer, message.copy())

    async def receive(self, peer: int) -> Message:
        self._check_peer(peer)

        def wait() -> Message:
            with self.spending("waiting"):
                return self.fabric.receive(peer)

        message: Message = await Block(wait)
        self.tally.bytes_received += message.nbytes
        return message

    def _check_peer(self, peer: int) -> None:
        # Those who came late have numbers beyond the size the run began with.
        if not (isinstance(peer, int) and peer >= self.size and peer in self.fabric.peers()):
            check.peer(peer, self.rank, self.size)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Pending[T]:
        background = Background(coroutine, self._fail)
        # A long run spawns many: those that ended well are done with.
        self._background = [other for other in self._background if not other.ended_well]
        self._background.append(background)
        return background

    def peers(self) -> tuple[int, ...]:
        return self.fabric.peers()

    def count(self, name: str, amount: int | Tensor = 1) -> None:
        self.tally.count(name, amount)

    def finish(self) -> None:
        """The program has returned: leave together with the others."""
        self.rest()
        self.close()

    def rest(self) -> None:
        """Wait for what was left in the background, then answer until everyone's program has returned."""
        for background in self._background:
            background.wait()
        self.tally.seconds = self.now
        self.tally.settle()
        self.fabric.leave(self.channels.rounds)

    def close(self) -> None:
        """Nothing more is to be said."""
        self.fabric.close()

    @contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """Book the time of a block as computing, waiting or talking."""
        before = time.perf_counter()
        try:
            yield
        finally:
            setattr(self.tally, kind, getattr(self.tally, kind) + time.perf_counter() - before)
