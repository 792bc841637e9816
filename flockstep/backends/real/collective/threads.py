"""Nodes as threads of one process: collectives in shared memory. For tests, notebooks and gradients that leave the
interpreter lock; nothing crosses a network, but the bytes that would are counted."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from flockstep.errors import Deadlock, FlockstepError, LostPeer, Mismatch, nodes_named, stuck
from flockstep.message import Message
from flockstep.node import Handler, mean_of


class _Meeting:
    def __init__(self, where: str) -> None:
        self.where = where
        self.brought: dict[int, Any] = {}
        self.futures: dict[int, Future[Any]] = {}

    def unsettled(self) -> dict[int, Future[Any]]:
        """Of those who wait still: who failed after it came, or lost somebody, has been told already."""
        return {rank: future for rank, future in self.futures.items() if not future.done()}


class Hub:
    """The shared memory all threads of a run meet in."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout
        self.changed = threading.Condition()
        self.left: dict[int, dict[str, int]] = {}
        self.failed: dict[int, FlockstepError] = {}
        self.meetings: dict[tuple[str, int], _Meeting] = {}
        self.handlers: dict[tuple[int, str], Handler] = {}
        self.handling = [threading.Lock() for _ in range(size)]
        self.inbox: dict[tuple[int, int], deque[Message]] = defaultdict(deque)

    def join(
        self, rank: int, verb: str, channel: str, round: int, thing: Any, complete: Callable[[list[Any]], list[Any]]
    ) -> Future[Any]:
        """Bring something to a meeting; the last to come completes it for all."""
        future: Future[Any] = Future()
        with self.changed:
            if rank in self.failed:
                raise self.failed[rank]
            where = f"{verb}({channel!r}), round {round}"
            meeting = self.meetings.setdefault((channel, round), _Meeting(where))
            if meeting.where != where:
                raise Mismatch(
                    f"node {rank} is in {where} where others are in {meeting.where}", channel=channel, round=round
                )
            meeting.brought[rank], meeting.futures[rank] = thing, future
            if len(meeting.brought) < self.size:
                self._end_hopeless()
                return future
            del self.meetings[channel, round]
        try:
            results = complete([meeting.brought[r] for r in range(self.size)])
        except Exception as error:
            for waiting in meeting.unsettled().values():
                waiting.set_exception(error)
        else:
            for r, waiting in meeting.unsettled().items():
                waiting.set_result(results[r])
        return future

    def fail(self, rank: int, error: FlockstepError) -> None:
        """A node failed: whoever waits for it, or will, learns so."""
        with self.changed:
            self.failed.setdefault(rank, error)
            for meeting in self.meetings.values():
                for r, future in meeting.unsettled().items():
                    future.set_exception(error if r == rank else self.lost(r, meeting.where))
            self.changed.notify_all()

    def leave(self, rank: int, rounds: dict[str, int]) -> None:
        """A node's program returned; stay until all have."""
        with self.changed:
            self.left[rank] = dict(rounds)
            self._end_hopeless()
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.failed or len(self.left) == self.size, self.timeout)
            if self.failed or len(self.left) < self.size:
                raise self.lost(rank, "its end")

    def lost(self, rank: int, where: str) -> LostPeer:
        """What a node is told that waited for a failed one."""
        return LostPeer(f"node {rank} was in {where} when it lost {nodes_named(sorted(self.failed))}", rank=rank)

    def _end_hopeless(self) -> None:
        """A meeting can no longer happen when somebody it lacks has left, or failed."""
        if len(self.left) == self.size:
            return
        for (channel, round), meeting in self.meetings.items():
            gone = [r for r in self.left if r not in meeting.brought]
            dead = [r for r in self.failed if r not in meeting.brought]
            if not gone and not dead:
                continue
            for r, future in meeting.unsettled().items():
                future.set_exception(
                    stuck([r], meeting.where, gone, channel=channel, round=round)
                    if gone
                    else self.lost(r, meeting.where)
                )


class ThreadFabric:
    """One thread's way into the hub."""

    def __init__(self, hub: Hub, rank: int, *, one_sided: bool = False) -> None:
        self._hub, self._rank, self._one_sided = hub, rank, one_sided

    def mean(self, v: Tensor, channel: str, round: int) -> Future[Tensor]:
        def complete(vectors: list[Tensor]) -> list[Tensor]:
            total = mean_of(vectors, channel, round)
            return [total.clone() for _ in vectors]

        return self._hub.join(self._rank, "mean", channel, round, v, complete)

    def exchange(self, messages: Sequence[Message], channel: str, round: int) -> Future[list[Message]]:
        def complete(table: list[Sequence[Message]]) -> list[list[Message]]:
            return [[row[rank] for row in table] for rank in range(len(table))]

        return self._hub.join(self._rank, "exchange", channel, round, messages, complete)

    def wait(self, future: Future[Any], where: str, channel: str, round: int) -> Any:
        try:
            return future.result(self._hub.timeout)
        except TimeoutError:
            raise Deadlock(f"node {self._rank} waited {self._hub.timeout:g} s in {where}", rank=self._rank) from None

    def answer(self, topic: str, handler: Handler) -> None:
        with self._hub.changed:
            self._hub.handlers[self._rank, topic] = handler
            self._hub.changed.notify_all()

    def undisturbed(self) -> AbstractContextManager[object]:
        return self._hub.handling[self._rank]

    def ask(self, peer: int, topic: str, message: Message) -> Message:
        hub = self._hub
        with hub.changed:
            hub.changed.wait_for(lambda: (peer, topic) in hub.handlers or peer in hub.failed, hub.timeout)
            if (peer, topic) not in hub.handlers or peer in hub.failed:
                raise LostPeer(f"node {self._rank} lost node {peer} in ask({topic!r})", rank=self._rank)
        try:
            with hub.handling[peer]:
                # Looked up here: the one that answered when the question came may have been replaced since.
                return hub.handlers[peer, topic](self._rank, message).copy()
        except Exception as error:
            raise LostPeer(
                f"node {self._rank} lost node {peer} in ask({topic!r}): it failed", rank=self._rank
            ) from error

    def send(self, peer: int, message: Message) -> None:
        with self._hub.changed:
            self._hub.inbox[self._rank, peer].append(message)
            self._hub.changed.notify_all()

    def receive(self, peer: int) -> Message:
        hub, pair, deadline = self._hub, (peer, self._rank), time.monotonic() + self._hub.timeout
        with hub.changed:
            while not hub.inbox[pair]:
                if peer in hub.failed:
                    raise LostPeer(f"node {self._rank} lost node {peer} in receive", rank=self._rank)
                # Handlers of a node that has returned still run, and may send.
                if peer in hub.left and not self._one_sided:
                    raise stuck([self._rank], f"receive from node {peer}", [peer])
                if not hub.changed.wait(deadline - time.monotonic()):
                    raise Deadlock(
                        f"node {self._rank} waited {hub.timeout:g} s in receive from node {peer}", rank=self._rank
                    )
            return hub.inbox[pair].popleft()

    sees_peers = True

    def linger(self) -> None:
        with self._hub.changed:
            # A thread that failed is not started again.
            self._hub.changed.wait_for(lambda: self._hub.failed, 1.0)

    def peers(self) -> tuple[int, ...]:
        return tuple(r for r in range(self._hub.size) if r != self._rank and r not in self._hub.failed)

    def fail(self, error: FlockstepError) -> None:
        self._hub.fail(self._rank, error)

    def leave(self, rounds: dict[str, int]) -> None:
        self._hub.leave(self._rank, rounds)

    def publish(self, metrics: Callable[[], str]) -> None:
        pass

    def close(self) -> None:
        pass
