"""A worker's dealings with a server: when it pushes, what it does until there is a reply, and how long without one.

Every ``due`` steps a worker pushes all that is new, and waits for the reply; with ``max_steps_in_flight`` it goes on
meanwhile, for so many steps at most. Pushes are numbered, so that a server counts each once: one that had no reply is
sent again as it was, under its number, and steps taken meanwhile go into the next. ``patience`` is how many steps a
worker takes without a reply; with none at all (None) a dead server is given up at once, and the worker goes on alone.
At its end a worker takes no more steps, and tries its last push as often, a second apart where the server is dead.

A server replies at once, or says that the reply is held, and comes as a letter; or that it is behind: it began anew,
and knows less than the worker.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Literal, TypeVar

from flockstep.errors import LostPeer, lost_server
from flockstep.message import Message
from flockstep.node import Node, Pending

Pushed = TypeVar("Pushed")
Replied = TypeVar("Replied")

HELLO = 0
"""The number of a push without a change: a worker begins."""
HELD, BEHIND = Message.of_bytes(b"", "held"), Message.of_bytes(b"", "behind")
_log = logging.getLogger("flockstep")


def is_held(reply: Message) -> bool:
    """Whether what is asked for will come as a letter."""
    return reply.codec == HELD.codec


def is_behind(reply: Message) -> bool:
    """Whether the server knows less than the worker, and would take over what that one has."""
    return reply.codec == BEHIND.codec


class Pusher(ABC, Generic[Pushed, Replied]):
    """A worker, whatever it pushes and is replied."""

    seconds_at_the_end: ClassVar[float] = math.inf
    """How long one that has nothing left to do waits for a dead server to come back."""

    def __init__(self, node: Node, server: int, *, due: int, max_steps_in_flight: int, patience: int | None) -> None:
        self._node, self._server = node, server
        self._due, self._ahead, self._patience = due, max_steps_in_flight, patience
        self._number, self._greeted, self._abandoned = HELLO, False, False
        self._unsent = self._since = 0
        """Steps that are in no push yet, and steps since the last attempt to push."""
        self._alone = self._misses = 0
        """Since the last reply: steps taken, and pushes in vain."""
        self._push: Pushed | None = None
        """The push that has no reply yet."""
        self._pending: Pending[Replied | Literal["behind"] | None] | None = None

    @abstractmethod
    def _new_push(self, steps: int) -> Pushed:
        """What is new since the last, of so many steps, under the present number."""

    @abstractmethod
    async def _reply(self, push: Pushed | None) -> Replied | Literal["behind"] | None:
        """What the server replies to a push, or where there is none to a worker that begins; None if it is gone."""

    @abstractmethod
    def _take(self, reply: Replied, push: Pushed | None) -> None:
        """Take in what the server has by now; what was learned since the push stays."""

    def _restore(self) -> None:
        """The server is behind: make a push of all that this worker has."""
        raise NotImplementedError

    async def greet(self) -> None:
        """Hear what the server has; where it is not there, later."""
        reply = await self._reply(None)
        if reply is None or isinstance(reply, str):
            self._miss_the_server()
        else:
            self._greeted = True
            self._take(reply, None)

    async def stepped(self, steps: int = 1) -> None:
        """So many steps were taken: push when it is time to, and take in what has come."""
        self._unsent += steps
        self._since += steps
        self._alone += steps
        if self._abandoned:
            return
        if self._pending is not None and (self._pending.done or self._since >= self._ahead):
            await self._land()
        if self._pending is None and self._since >= self._due:
            await self._exchange(wait=self._ahead == 0)

    async def end(self) -> None:
        """Push what is left: without its last push, a worker's last steps would be lost."""
        await self._land()
        left = self.seconds_at_the_end
        while (self._unsent or self._push is not None) and not self._abandoned:
            await self._exchange(wait=True)
            if self._misses and self._server not in self._node.peers():
                if left == 0:
                    raise self._lost()
                left -= 1
                await self._node.linger()

    async def _exchange(self, *, wait: bool) -> None:
        """Push all that is new, or once more what had no reply."""
        self._since = 0
        if not self._greeted:
            await self.greet()
        if not self._greeted:
            return
        if self._push is None:
            self._number += 1
            steps, self._unsent = self._unsent, 0
            self._push = self._new_push(steps)
        if wait:
            self._merge(await self._reply(self._push))
        else:
            self._pending = self._node.spawn(self._reply(self._push))

    async def _land(self) -> None:
        """Wait for the reply that is under way."""
        if self._pending is not None:
            self._merge(await self._pending)
            self._pending = None

    def _merge(self, reply: Replied | Literal["behind"] | None) -> None:
        if reply is None:
            self._miss_the_server()
        elif isinstance(reply, str):
            self._restore()
        else:
            push, self._push = self._push, None
            self._alone, self._misses = self._since, 0
            self._node.count("exchanges")
            self._take(reply, push)

    def _miss_the_server(self) -> None:
        self._node.count("server lost")
        self._misses += 1
        if self._patience is None:
            if self._server not in self._node.peers() and not self._abandoned:
                sentence = "node %d: the server, node %d, is dead; it learns on by itself"
                _log.warning(sentence, self._node.rank, self._server)
                self._abandoned = True
        # Who has no more steps to take still tries as often as it would have in so many.
        elif max(self._alone, self._misses * self._due) > self._patience:
            raise self._lost()

    def _lost(self) -> LostPeer:
        node, server, patience = self._node, self._server, self._patience or 0
        alive, pushes = server in node.peers(), self._misses
        return lost_server(node.rank, server, alive=alive, pushes=pushes, steps=self._alone, patience=patience)
