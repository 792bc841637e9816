"""What a real node needs from whatever connects it with the others: shared memory, or a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from flockstep.elastic import Elastic
from flockstep.errors import FlockstepError
from flockstep.message import Message
from flockstep.node import Handler

MakeFabric = Callable[[bool, Elastic | None], "Fabric"]
"""A new connection with the others; for a one-sided program if True, which needs no collectives and no store, and for
one whose nodes take means and may die and come, if an Elastic says how."""


class Fabric(Protocol):
    """Collectives begin at once and end in a future; messages block. Every wait has a deadline."""

    def mean(self, v: Tensor, channel: str, round: int) -> Future[Tensor]:
        """Begin a mean; ``v`` is the fabric's to keep."""

    def exchange(self, messages: Sequence[Message], channel: str, round: int) -> Future[list[Message]]:
        """Begin an exchange; the messages are the fabric's to keep."""

    def wait(self, future: Future[Any], where: str, channel: str, round: int) -> Any:
        """The result of a collective, or Deadlock when it can no longer come."""

    def answer(self, topic: str, handler: Handler) -> None:
        """Let a handler answer from now on."""

    def undisturbed(self) -> AbstractContextManager[object]:
        """Hold back this node's handlers."""

    def ask(self, peer: int, topic: str, message: Message) -> Message:
        """Block until the reply is here."""

    def send(self, peer: int, message: Message) -> None:
        """Give a message to the wire."""

    def receive(self, peer: int) -> Message:
        """Block until the next message of a peer is here."""

    @property
    def sees_peers(self) -> bool:
        """Whether ``peers`` is there without further ado: nothing has to be opened for it."""

    def linger(self) -> None:
        """Let a second pass, unless nobody who is dead can come back."""

    def peers(self) -> tuple[int, ...]:
        """Who else is alive."""

    def publish(self, metrics: Callable[[], str]) -> None:
        """Show this to whoever looks, where there is a place for it."""

    def fail(self, error: FlockstepError) -> None:
        """This node is done for: whatever waits here must wait no longer."""

    def leave(self, rounds: dict[str, int]) -> None:
        """Say that this node's program has returned, and go on answering until everyone's has."""

    def close(self) -> None:
        """The very last thing to do."""
