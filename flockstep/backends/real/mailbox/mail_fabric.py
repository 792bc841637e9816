"""A node's way to the others by mail alone: all that a one-sided strategy needs, and all that outlives any node.

Nothing here waits for everybody: there are no collectives, and no store once addresses are known. Nodes may die, come
back and come late.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, NoReturn

from torch import Tensor

from flockstep.backends.real.mailbox.endpoint import Endpoint
from flockstep.backends.real.mailbox.mailbox import Mailbox
from flockstep.backends.real.membership.lingering import wait_for_the_living
from flockstep.backends.real.membership.member_line import Member
from flockstep.errors import FlockstepError, LostPeer
from flockstep.message import Message
from flockstep.node import Handler


class MailFabric:
    """Ask, answer, send, receive; who is alive; leaving together."""

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        open_endpoint: Callable[[], Endpoint],
        *,
        newcomer: bool = False,
        founder: bool = True,
        publish_leaving: Callable[[Member], None] = lambda me: None,
    ) -> None:
        self._rank, self._size, self.timeout, self._open_house = rank, size, timeout, open_endpoint
        self._publish_leaving = publish_leaving
        self.newcomer, self.founder = newcomer, founder
        """Whether the run was there before this node: it was started anew, or comes late. And whether it is one of
        those the run began with."""
        self._error: Exception | None = None
        self._house: Endpoint | None = None
        self._metrics: Callable[[], str] | None = None
        self._lock = threading.Lock()

    def mean(self, v: Tensor, channel: str, round: int) -> Future[Tensor]:
        self._no_collectives("mean")

    def exchange(self, messages: Sequence[Message], channel: str, round: int) -> Future[list[Message]]:
        self._no_collectives("exchange")

    def wait(self, future: Future[Any], where: str, channel: str, round: int) -> Any:
        self._no_collectives("wait")

    def answer(self, topic: str, handler: Handler) -> None:
        self.mailbox().answer(topic, handler)

    def undisturbed(self) -> AbstractContextManager[object]:
        return self.mailbox().handling

    def ask(self, peer: int, topic: str, message: Message) -> Message:
        return self.mailbox().ask(peer, topic, message)

    def send(self, peer: int, message: Message) -> None:
        self.mailbox().send(peer, message)

    def receive(self, peer: int) -> Message:
        return self.mailbox().receive(peer)

    @property
    def sees_peers(self) -> bool:
        return self._house is not None

    def linger(self) -> None:
        with self.mailbox().members.changed:
            self.mailbox().members.changed.wait_for(lambda: self._error, 1.0)
        if self._error is not None:
            raise self._error

    def peers(self) -> tuple[int, ...]:
        return self.mailbox().members.alive()

    def publish(self, metrics: Callable[[], str]) -> None:
        with self._lock:
            self._metrics = metrics
            if self._house is not None:
                self._house.box.desk.metrics = metrics

    def reachable(self) -> tuple[int, ...]:
        """The living whose address is known by now."""
        box = self.mailbox()
        return tuple(rank for rank in box.members.alive() if box.look_up(rank) is not None)

    def fail(self, error: FlockstepError) -> None:
        self._error = error
        if self._house is not None:
            with self._house.box.members.changed:
                self._house.box.members.changed.notify_all()

    def leave(self, rounds: dict[str, int]) -> None:
        """Tell the others, and answer until whoever still lives has left as well."""
        box = self.mailbox()
        box.members.leave()
        self._publish_leaving(box.members.me)
        for peer in self.reachable():
            with suppress(LostPeer):
                box.knock(peer)
        wait_for_the_living(box.members, self.timeout, lambda: self._error)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        if self._house is not None:
            self._house.close()

    def mailbox(self) -> Mailbox:
        """The node's mailbox, opened when it is first needed."""
        with self._lock:
            if self._house is None:
                self._house = self._open_house()
                self._house.box.desk.metrics = self._metrics
            return self._house.box

    def _no_collectives(self, verb: str) -> NoReturn:
        raise FlockstepError(
            f"node {self._rank} called {verb} in a one-sided run, where no node waits for all others\n"
            "  a strategy that needs collectives must not say one_sided = True",
            rank=self._rank,
        )
