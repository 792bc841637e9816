"""A worker's side of a server: it pushes what its node has learned, and takes in what the server has by then.

A push that had no reply is sent again as it was, under its number; steps taken meanwhile go into the next one, and a
worker does not end before the last of them has arrived, or its patience is over, or the server has been dead for a
minute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flockstep.codecs.codec import Codec
from flockstep.codecs.raw import Raw
from flockstep.codecs.tail import sparing
from flockstep.errors import LostPeer, lost_server
from flockstep.message import NOTHING, Message, stamped, unstamped
from flockstep.node import Node, Pending
from flockstep.parts.push_server import END, HELLO, PUSH, RESTORE, Server, is_behind, is_held

_SECONDS_AT_THE_END = 60
"""How long a worker that has nothing left to do waits for a dead server to come back."""


class Worker:
    """One node's dealings with the server, which is ``own`` where it is on this very node."""

    def __init__(
        self,
        node: Node,
        server: int,
        own: Server | None,
        codec: Codec,
        *,
        due: int,
        max_steps_in_flight: int,
        patience: int,
    ) -> None:
        self._node, self._server, self._own, self._x = node, server, own, node.params
        self._due, self._ahead, self._patience = due, max_steps_in_flight, patience
        self._given = node.keep("given", node.params.clone())
        self._version = node.keep("given version", torch.zeros(1, dtype=torch.int64))
        self._number, self._greeted, self._codec = HELLO, False, sparing(codec, node)
        self._unsent = self._since = 0
        """Steps that are in no push yet, and steps since the last attempt to push."""
        self._alone = self._misses = 0
        """Since the last reply: steps taken, and pushes in vain."""
        self._push: tuple[Message, Tensor] | None = None
        """The push that has no reply yet, and what the server reads in it."""
        self._pending: Pending[Message | None] | None = None

    async def begin(self) -> None:
        """Read the model; what was not pushed yet, by a resumed worker or before the server was there, stays."""
        if self._own is not None:
            fresh, version = self._own.read_own()
        else:
            try:
                version, _, inner = unstamped(await self._say(PUSH, stamped(NOTHING, 0, HELLO)))
            except LostPeer:
                self._miss_the_server()
                return
            fresh = Raw().decode(inner, self._given)
        self._greeted, trained = True, self._node.trained
        self._x[:trained].add_((fresh - self._given)[:trained])
        self._x[trained:].copy_(fresh[trained:])
        self._given.copy_(fresh)
        self._version.fill_(version)

    async def stepped(self, steps: int) -> None:
        """So many steps were taken: push when it is time to, and take in what has come."""
        self._unsent += steps
        self._since += steps
        self._alone += steps
        if self._pending is not None and (self._pending.done or self._since >= self._ahead):
            self._merge(await self._pending)
            self._pending = None
        if self._pending is None and self._since >= self._due:
            await self._exchange(wait=self._ahead == 0)

    async def end(self) -> None:
        """Push what is left, and say so to whoever asks."""
        if self._pending is not None:
            self._merge(await self._pending)
            self._pending = None
        if not isinstance(self._codec, Raw):
            # No push will follow that could bring what a codec leaves out of the last: one more, exact.
            self._codec, self._unsent = Raw(), max(1, self._unsent)
        left = _SECONDS_AT_THE_END
        while self._unsent or self._push is not None:
            # Without its last push, a worker's last steps would be lost.
            await self._exchange(wait=True)
            if self._misses and self._server not in self._node.peers():
                if left == 0:
                    raise self._lost()
                left -= 1
                await self._node.linger()
        if self._own is not None:
            self._own.farewell_own(self._x)
        else:
            self._node.answer(END, lambda peer, message: NOTHING)

    async def _exchange(self, *, wait: bool) -> None:
        """Push all that is new, or once more what had no reply."""
        self._since = 0
        if self._own is not None:
            change = self._change()
            fresh, version = self._own.push_own(self._x, change, int(self._version))
            self._unsent = self._alone = 0
            self._take(fresh, change, version)
            return
        if not self._greeted:
            await self.begin()
        if not self._greeted:
            return
        if self._push is None:
            message = self._codec.encode(self._change(), self._node.rng)
            self._number += 1
            push = stamped(message, int(self._version), self._number)
            self._push = push, self._codec.decode(message, self._given)
            self._unsent = 0
        replying = self._reply(self._push[0], self._given.clone())
        if wait:
            self._merge(await replying)
        else:
            self._pending = self._node.spawn(replying)

    def _change(self) -> Tensor:
        """What is new of what trains; of batch-norm statistics how they are, as they are no sum of changes."""
        change, trained = self._x - self._given, self._node.trained
        change[trained:] = self._x[trained:]
        return change

    async def _reply(self, push: Message, given: Tensor) -> Message | None:
        """What the server replies to a push; None if it is gone."""
        version, number, _ = unstamped(push)
        try:
            reply = await self._say(PUSH, push)
            if is_behind(reply):
                await self._say(RESTORE, stamped(Raw().encode(given, self._node.rng), version))
                reply = await self._say(PUSH, push)
            # A letter may answer an earlier push, whose reply came too late.
            while is_held(reply) or unstamped(reply)[1] != number:
                reply = await self._node.receive(self._server)
            return reply
        except LostPeer:
            return None

    async def _say(self, topic: str, message: Message) -> Message:
        return await self._node.ask(self._server, topic, message)

    def _merge(self, reply: Message | None) -> None:
        if reply is None:
            self._miss_the_server()
        elif self._push is not None:
            version, _, inner = unstamped(reply)
            self._take(Raw().decode(inner, self._given), self._push[1], version)
            self._push, self._alone, self._misses = None, self._unsent, 0

    def _take(self, fresh: Tensor, pushed: Tensor, version: int) -> None:
        """The steps taken since the push, and what the codec left out of it, stay; so do a worker's own statistics."""
        trained = self._node.trained
        self._node.count("exchanges")
        self._x[:trained].add_((fresh - self._given).sub_(pushed)[:trained])
        self._given[:trained].copy_(fresh[:trained])
        self._version.fill_(version)

    def _miss_the_server(self) -> None:
        self._node.count("server lost")
        self._misses += 1
        # Who has no more steps to take still tries as often as it would have in so many.
        if max(self._alone, self._misses * self._due) > self._patience:
            raise self._lost()

    def _lost(self) -> LostPeer:
        return lost_server(
            self._node.rank,
            self._server,
            alive=self._server in self._node.peers(),
            pushes=self._misses,
            steps=self._alone,
            patience=self._patience,
        )
