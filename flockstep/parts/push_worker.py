"""A worker's side of a server of a model: it pushes what its node has learned, and takes in what the server has.

    pushes   change = x - given, of which the server reads Q(change)
    merges   x <- x + (fresh - given) - Q(change);      given <- fresh

So the steps taken since the push stay in x, and so does what the codec left out of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flockstep.codecs.codec import Codec
from flockstep.codecs.raw import Raw
from flockstep.codecs.tail import sparing
from flockstep.errors import LostPeer
from flockstep.message import NOTHING, Message, stamped, unstamped
from flockstep.node import Node
from flockstep.parts.push_protocol import HELLO, Pusher, is_behind, is_held
from flockstep.parts.push_server import END, PUSH, RESTORE, Fresh, Push, Server
from flockstep.parts.statistics import statistics, trained


class Worker(Pusher[Push, Fresh]):
    """One node's dealings with the server, which is ``own`` where it is on this very node."""

    seconds_at_the_end = 60

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
        # One's own server replies at once.
        ahead = max_steps_in_flight if own is None else 0
        super().__init__(node, server, due=due, max_steps_in_flight=ahead, patience=patience)
        self._x, self._codec = node.params, sparing(codec, node)
        self._given = node.keep("given", node.params.clone())
        self._version = node.keep("given version", torch.zeros(1, dtype=torch.int64))
        self._face = _RemoteServer(node, server, self._given) if own is None else own

    async def end(self) -> None:
        """Push what is left, and say so to whoever asks."""
        await self._land()
        if not isinstance(self._codec, Raw):
            # No push will follow that could bring what a codec leaves out of the last: one more, exact.
            self._codec, self._unsent = Raw(), max(1, self._unsent)
        await super().end()
        self._face.farewell()

    def _new_push(self, steps: int) -> Push:
        change = self._x - self._given
        # Of batch-norm statistics how they are: they are no sum of changes.
        statistics(change, self._node).copy_(statistics(self._x, self._node))
        return self._face.coded(change, self._codec, version=int(self._version), number=self._number)

    async def _reply(self, push: Push | None) -> Fresh | None:
        return await (self._face.read() if push is None else self._face.push(push))

    def _take(self, reply: Fresh, push: Push | None) -> None:
        fresh, node = reply.model, self._node
        news = fresh - self._given if push is None else (fresh - self._given).sub_(push.change)
        trained(self._x, node).add_(trained(news, node))
        trained(self._given, node).copy_(trained(fresh, node))
        self._version.fill_(reply.version)
        if push is None:
            # Who begins has the server's statistics, and from then on its own.
            statistics(self._x, node).copy_(statistics(fresh, node))
            statistics(self._given, node).copy_(statistics(fresh, node))
        else:
            # Of a push that was sent again, the steps since it was made had no reply either.
            self._alone = self._unsent


class _RemoteServer:
    """The face of a server on another node; messages are coded, may be late, and lost: then a reply is None."""

    def __init__(self, node: Node, server: int, given: Tensor) -> None:
        self._node, self._server, self._given = node, server, given
        """What this worker has read is what a server that began anew takes over."""

    async def read(self) -> Fresh | None:
        """The model; the worker is then known to the server."""
        try:
            return self._fresh(await self._ask(PUSH, stamped(NOTHING, 0, HELLO)))
        except LostPeer:
            return None

    def coded(self, change: Tensor, codec: Codec, *, version: int, number: int) -> Push:
        """As it travels, and as it will be read."""
        message = codec.encode(change, self._node.rng)
        return Push(number, version, codec.decode(message, self._given), stamped(message, version, number))

    async def push(self, push: Push) -> Fresh | None:
        """The model with the push in it."""
        try:
            reply = await self._ask(PUSH, push.message)
            if is_behind(reply):
                await self._ask(RESTORE, stamped(Raw().encode(self._given, self._node.rng), push.version))
                reply = await self._ask(PUSH, push.message)
            # A letter may answer an earlier push, whose reply came too late.
            while is_held(reply) or unstamped(reply)[1] != push.number:
                reply = await self._node.receive(self._server)
            return self._fresh(reply)
        except LostPeer:
            return None

    def farewell(self) -> None:
        """Tell a server that waits for this worker that it has ended."""
        self._node.answer(END, lambda peer, message: NOTHING)

    async def _ask(self, topic: str, message: Message) -> Message:
        return await self._node.ask(self._server, topic, message)

    def _fresh(self, reply: Message) -> Fresh:
        version, _, inner = unstamped(reply)
        return Fresh(Raw().decode(inner, self._given), version)
