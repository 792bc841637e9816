"""A real node: the verbs on a Fabric, with a real clock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from flockstep import check
from flockstep.backends.real import metrics
from flockstep.backends.real.drive import Background, Block, current_task, in_background
from flockstep.backends.real.fabric import Fabric
from flockstep.backends.real.mailbox.memory import Buffers
from flockstep.backends.real.recording import Recording, Stopwatch
from flockstep.backends.real.rounds.elastic_fabric import ElasticFabric
from flockstep.backends.real.rounds.taking_part import TakingPart
from flockstep.elastic import SENDS_TO_NEIGHBOURS
from flockstep.errors import FlockstepError, LeftOut, located
from flockstep.guard import Guarded
from flockstep.message import Message, ring_bytes
from flockstep.node import Channels, Handler, Pending, stream
from flockstep.timeline import Timeline
from flockstep.trace import NodeReport, Row, ViewChange

T = TypeVar("T")
_log = logging.getLogger("flockstep")


class RealNode(Guarded):
    """One node of a real run, on a thread or a process of its own."""

    rows: list[Row]

    def __init__(
        self, fabric: Fabric, rank: int, size: int, seed: int, keeping: Recording = Recording(), strategy: str = ""
    ) -> None:
        self.rank, self.size, self.step_count = rank, size, 0
        self.rng = stream(seed, rank, "codec")
        self.tally = NodeReport(rank)
        self.kept, self.kept_before = {}, {}
        self.channels = Channels(rank)
        self.fabric, self._copies = fabric, Buffers()
        self._background: list[Background[Any]] = []
        self._began, self._paused, self._glanced = time.perf_counter(), 0.0, 0.0
        self._keeping, self._counting = keeping, threading.Lock()
        self.journal = keeping.open_journal(rank, size, strategy)
        self.timeline: Timeline | None = self.journal
        if keeping.timeline:
            self.timeline = Timeline(began=time.time(), beside=self.journal)
        if self.journal is not None:
            self.journal.follow(self.tally)
        self.stopwatch = Stopwatch(self.tally, self.timeline, lambda: self.now)
        self.spending = self.stopwatch.spending
        self.rows = []
        self.part: TakingPart | None = None
        """This node's part in an elastic run."""
        self._taking_part: tuple[int, ...] = ()
        if isinstance(fabric, ElasticFabric):
            self.elastic, self.part = True, TakingPart(self, fabric)
            self._begin_view(fabric.newcomer)
            fabric.log.follow(self._view_changed, lambda: self.count("rounds begun again"))
        fabric.publish(self.metrics)

    @property
    def now(self) -> float:
        """Seconds of training so far; measuring losses does not count."""
        return time.perf_counter() - self._began - self._paused

    async def mean(self, v: Tensor, channel: str = "model") -> Tensor:
        self.channels.check(channel, v)
        self.check_finite(v, f"what was brought to mean({channel!r})")
        # Where nodes come and go, who took part is known afterwards.
        if not self.elastic:
            self._count_mean(v)
        result: Tensor = await self._meet(self.fabric.mean, self._copies.copy(v), "mean", channel)
        if self.elastic:
            self._count_mean(v)
        return result

    def _count_mean(self, v: Tensor) -> None:
        view = self.view
        nbytes = ring_bytes(v.nbytes, len(view))
        if self.rank in view:
            self._sent(view[(view.index(self.rank) + 1) % len(view)], nbytes)
            self._received(nbytes)

    async def exchange(self, messages: Sequence[Message], channel: str = "exchange") -> list[Message]:
        if len(messages) != self.size:
            raise ValueError(f"exchange needs one message per node, {self.size}, got {len(messages)}")
        if not self.elastic:
            self._count_exchange(messages)
        if self.part is not None and channel != "door":
            self.part.exchanges = True
        copies = [message.copy() for message in messages]
        received: list[Message] = await self._meet(self.fabric.exchange, copies, "exchange", channel)
        if self.elastic:
            self._count_exchange(messages)
        self._received(sum(m.nbytes for by, m in enumerate(received) if by != self.rank and by in self.view))
        return received

    def _count_exchange(self, messages: Sequence[Message]) -> None:
        for to in self.view:
            if to != self.rank and self.rank in self.view:
                self._sent(to, messages[to].nbytes)

    def _sent(self, peer: int, nbytes: int) -> None:
        # Background tasks and handlers count as well, in threads of their own.
        with self._counting:
            self.tally.bytes_sent += nbytes
            if self.timeline is not None and nbytes:
                self.timeline.send(self.rank, peer, nbytes)

    def _received(self, nbytes: int) -> None:
        with self._counting:
            self.tally.bytes_received += nbytes

    def _fail(self, error: Exception) -> None:
        if isinstance(error, LeftOut):
            # Its main task will see that itself, and come in again.
            return
        # In a handler or a background task: the main task learns of it at its next wait.
        self.fabric.fail(located(error, self.rank, self.now))

    def _meet(self, begin: Callable[..., Any], thing: Any, verb: str, channel: str) -> Block:
        # Begun here, in the program's own order; only the waiting is left to whichever thread drives.
        round = self.channels.next_round(channel)
        task = current_task()
        if self.part is not None and task is not None:
            self.part.begun(channel, round, task)
        future = begin(thing, channel, round)

        def wait() -> Any:
            with self.spending("talking"):
                result = self.fabric.wait(future, f"{verb}({channel!r}), round {round}", channel, round)
            if self.part is not None:
                self._took_part(future.ranks, task)
                if in_background():
                    self.part.fabric.remember(channel, round, future.ranks, result)
            return result

        return Block(wait)

    # Who takes part ---------------------------------------------------------------------------------------------------

    @property
    def view(self) -> tuple[int, ...]:
        # A background task sees who took part in its own last round: the node's others go on meanwhile.
        task = current_task()
        return (task.view if task else self._view) or tuple(range(self.size))

    @view.setter
    def view(self, ranks: tuple[int, ...]) -> None:
        self._view = ranks

    def _took_part(self, ranks: tuple[int, ...], task: Background[Any] | None) -> None:
        if task is None:
            self._view = ranks
        else:
            task.view = ranks

    def _begin_view(self, is_newcomer: bool) -> None:
        # Who comes late learns who takes part when it is let in.
        self._taking_part = () if is_newcomer else tuple(range(self.size))
        if self.journal is not None and not is_newcomer:
            self.journal.view(ViewChange(self._taking_part, (), (), 0.0))

    def _view_changed(self, change: ViewChange) -> None:
        change = replace(change, seconds=self.now)
        self._taking_part = change.members
        self.tally.views.append(change)
        _log.info("node %d: %s", self.rank, change)
        if self.journal is not None:
            self.journal.view(change)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that this node is between two steps, for one that comes."""
        raise NotImplementedError

    def take_over(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Be where another node was."""
        raise NotImplementedError

    def answer(self, topic: str, handler: Handler) -> None:
        def counted(peer: int, message: Message) -> Message:
            self._received(message.nbytes)
            reply = handler(peer, message)
            # What is none, whoever carries replies will complain of.
            if isinstance(reply, Message):
                self._sent(peer, reply.nbytes)
            return reply

        self.answer_unseen(topic, counted)

    def answer_unseen(self, topic: str, handler: Handler) -> None:
        """Answer what is not part of the algorithm: its bytes are not counted."""

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
        self._sent(peer, copy.nbytes)

        def wait() -> Message:
            with self.spending("talking"):
                return self.fabric.ask(peer, topic, copy)

        reply: Message = await Block(wait)
        self._received(reply.nbytes)
        return reply

    def send(self, peer: int, message: Message) -> None:
        if self.elastic:
            raise FlockstepError(SENDS_TO_NEIGHBOURS)
        self._check_peer(peer)
        self._sent(peer, message.nbytes)
        self.fabric.send(peer, message.copy())

    async def receive(self, peer: int) -> Message:
        self._check_peer(peer)

        def wait() -> Message:
            with self.spending("waiting"):
                return self.fabric.receive(peer)

        message: Message = await Block(wait)
        self._received(message.nbytes)
        return message

    def _check_peer(self, peer: int) -> None:
        # Those who came late have numbers beyond the size the run began with.
        if not (isinstance(peer, int) and peer >= self.size and peer in self.fabric.peers()):
            check.peer(peer, self.rank, self.size)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Pending[T]:
        background = Background(coroutine, self._fail, lambda: self.spending("waiting"))
        # A long run spawns many: those that ended well are done with.
        self._background = [other for other in self._background if not other.ended_well]
        self._background.append(background)
        return background

    async def aside(self, call: Callable[[], T]) -> T:
        result: T = await Block(call)
        return result

    async def linger(self) -> None:
        def wait() -> None:
            with self.spending("waiting"):
                self.fabric.linger()

        await Block(wait)

    def peers(self) -> tuple[int, ...]:
        living = self.fabric.peers()
        if self.journal is not None:
            self.journal.peers(living)
        return living

    def glance(self) -> None:
        """Tell onlookers, if there are any, who lives: at most once a second, and only where asking is free."""
        if self.journal is not None and self.fabric.sees_peers and time.monotonic() - self._glanced > 1.0:
            self._glanced = time.monotonic()
            self.peers()

    def kept_timeline(self) -> Timeline | None:
        """What goes into the trace, where that was asked for."""
        return replace(self.timeline, beside=None) if self.timeline is not None and self._keeping.timeline else None

    def count(self, name: str, amount: int | Tensor = 1) -> None:
        self.tally.count(name, amount)

    def finish(self) -> None:
        """The program has returned: leave together with the others."""
        self.rest()
        self.close()

    def rest(self) -> None:
        """Wait for what was left in the background, then answer until everyone's program has returned."""
        for background in self._background:
            with suppress(LeftOut):
                background.wait()
        self.tally.seconds = self.now
        self.tally.settle()
        self.fabric.leave(self.channels.rounds)

    def close(self) -> None:
        """Nothing more is to be said."""
        self.fabric.close()
        if self.journal is not None:
            self.journal.close()

    def give_up(self, error: BaseException) -> None:
        """Onlookers are told why this node ends."""
        if self.journal is not None:
            self.journal.close(error)

    def metrics(self) -> str:
        """How it goes, for whoever looks at the mailbox's port."""
        loss = self.rows[-1].loss if self.rows else None
        view = None if self.part is None else len(self._taking_part)
        return metrics.text(self.tally, self.now, len(self.fabric.peers()), loss, view)
