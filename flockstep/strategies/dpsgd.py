"""Distributed parallel SGD: asynchronous between machines, lock-free between the cores of each.

(Not differentially private SGD, and not decentralised parallel SGD, which is ``Gossip`` here.)

    server    folds any M pushes, in any order:   v <- v + server_lr * sum_m change_m;     replies v
    worker    u <- v; p threads, B steps each, with no lock:   u <- u - eta g(u)           coordinates may be of any age
              pushes the change u - v with the version it had read: one message per p B steps

A worker waits for the server, never for another worker, and with ``ahead`` not even for the server: it may take so many
steps while a push is under way, and none of them is lost,   x <- x + fresh - given - pushed.
What a codec leaves out of a push stays in x, and so goes into the next one: error feedback without a residual. The
last one is exact.
If the server is gone, workers step on their own, ``patience`` steps at most; when it is back, it takes over the model
of a worker that has read a newer one than it has itself.

Mohamad, Alamri, Bouchachia: scaling up stochastic gradient descent, Machine Learning 2022, arXiv 2210.02882, which has
O(1/sqrt T) for p <= T^1/4 and W <= T^1/2; beyond that, a warning. p = B = 1 is AsySG (Lian et al. 2015), one worker is
Hogwild. Only the abstract was at hand: the program above is ours.

Sends   one coded change to the server, and gets one model, per p B steps
Waits   for the server's reply; for nobody with ``ahead``; with ``fold``, for M pushes; with ``max_staleness``, for the
        slowest, when so many pushes ahead of it
Keeps   the model as it was read, and its version; at the server the model and its version
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.errors import LostPeer
from flockstep.message import NOTHING, Message
from flockstep.node import Node, Pending
from flockstep.parts.codecs.codec import Codec
from flockstep.parts.codecs.raw import Raw
from flockstep.parts.server import FAREWELL, HELLO, PUSH, RESTORE, Server, is_behind, is_held
from flockstep.parts.stamps import stamped, unstamped
from flockstep.parts.suited import CHANGES, codec_for


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """A server that folds whatever comes, workers that never wait for each other, cores that share a model unlocked."""

    one_sided: ClassVar[bool] = True
    own_gradients: ClassVar[bool] = True

    threads: int = 1
    local_steps: int = 1
    fold: int = 1
    server_lr: float = 1.0
    """What is added of a push: 1 / fold makes it a mean."""
    ahead: int = 0
    max_staleness: int | None = None
    damping: float = 0.0
    """A push that is s folds old counts (1 + s)^-damping."""
    codec: Codec = Raw()
    server: int = 0
    server_trains: bool = True
    patience: int = 1000

    def __post_init__(self) -> None:
        for name in ("threads", "local_steps", "fold", "patience"):
            check.whole(self, name, getattr(self, name))
        for name in ("ahead", "server"):
            check.whole(self, name, getattr(self, name), at_least=0)
        check.positive(self, "server_lr", self.server_lr)
        check.not_negative(self, "damping", self.damping)
        if self.max_staleness is not None:
            check.whole(self, "max_staleness", self.max_staleness, at_least=0)
        codec_for(self, self.codec, CHANGES, such_as="TopK(fraction=0.01)", instead="Stochastic(bits=8) or TopK()")

    async def run(self, node: Node) -> None:
        """Serve, or train and push, or both."""
        if self.server >= node.size:
            raise ValueError(f"DPSGD.server must be one of the {node.size} nodes, got {self.server}")
        if node.own_loop and not self.server_trains:
            raise ValueError("DPSGD.server_trains must be True in a loop of your own: there every node takes steps")
        x, server = node.params, None
        if node.rank == self.server:
            self._warn_beyond_the_theory(node)
            server = self._open(node)
            if not self.server_trains:
                return
        worker = _Worker(self, node, server)
        await worker.begin()
        if self.threads == 1:
            async for _ in node.steps():
                await node.step(await node.gradient(x))
                await worker.stepped(1)
        else:
            while steps := await node.work(self.threads, self.local_steps):
                await worker.stepped(steps)
        await worker.end()

    def _open(self, node: Node) -> Server:
        return Server(
            node,
            node.keep("server model", node.params.clone()) if self.server_trains else node.params,
            self.codec,
            fold=self.fold,
            rate=self.server_lr,
            damping=self.damping,
            most_ahead=self.max_staleness,
            trains=self.server_trains,
        )

    def _warn_beyond_the_theory(self, node: Node) -> None:
        workers = node.size - (not self.server_trains)
        if node.planned is None:
            return
        total = node.planned * workers
        cores, machines = int(total**0.25), int(total**0.5)
        if self.threads > cores or workers > machines:
            warnings.warn(
                f"DPSGD's analysis covers at most {cores} threads and {machines} workers for {total} steps in all; "
                f"here are {self.threads} and {workers}",
                stacklevel=2,
            )


class _Worker:
    """One node's dealings with the server."""

    def __init__(self, settings: DPSGD, node: Node, server: Server | None) -> None:
        self._settings, self._node, self._server, self._x = settings, node, server, node.params
        self._given = node.keep("given", node.params.clone())
        self._version = node.keep("given version", torch.zeros(1, dtype=torch.int64))
        self._number, self._greeted, self._codec = HELLO, False, settings.codec
        self._due = settings.threads * settings.local_steps
        self._unsent = self._alone = 0
        self._push: tuple[Message, Tensor] | None = None
        """The push that has no reply yet, and what the server reads in it."""
        self._pending: Pending[Message | None] | None = None

    async def begin(self) -> None:
        """Read the model; what was not pushed yet, by a resumed worker or before the server was there, stays."""
        if self._server is not None:
            fresh, version = self._server.read_own()
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
        if self._pending is not None and (self._pending.done or self._unsent >= self._settings.ahead):
            self._merge(await self._pending)
            self._pending = None
        if self._pending is None and self._unsent >= self._due:
            await self._exchange(wait=self._settings.ahead == 0)

    async def end(self) -> None:
        """Push what is left, and say so."""
        if self._pending is not None:
            self._merge(await self._pending)
            self._pending = None
        if not isinstance(self._codec, Raw):
            # No push will follow that could bring what a codec leaves out of the last: one more, exact.
            self._codec, self._unsent = Raw(), max(1, self._unsent)
        while self._unsent or self._push is not None:
            # Without its last push, a worker's last steps would be lost.
            await self._exchange(wait=True)
        if self._server is not None:
            self._server.farewell_own(self._x)
        else:
            with suppress(LostPeer):
                await self._say(FAREWELL, NOTHING)

    async def _exchange(self, *, wait: bool) -> None:
        """Push all that is new, or once more what had no reply."""
        if self._server is not None:
            change = self._x - self._given
            fresh, version = self._server.push_own(self._x, change, int(self._version))
            self._unsent = 0
            self._take(fresh, change, version)
            return
        if not self._greeted:
            await self.begin()
        if not self._greeted:
            return
        if self._push is None:
            message = self._codec.encode(self._x - self._given, self._node.rng)
            self._number += 1
            push = stamped(message, int(self._version), self._number)
            self._push = push, self._codec.decode(message, self._given)
        self._unsent = 0
        replying = self._reply(self._push[0], self._given.clone())
        if wait:
            self._merge(await replying)
        else:
            self._pending = self._node.spawn(replying)

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
                reply = await self._node.receive(self._settings.server)
            return reply
        except LostPeer:
            return None

    async def _say(self, topic: str, message: Message) -> Message:
        return await self._node.ask(self._settings.server, topic, message)

    def _merge(self, reply: Message | None) -> None:
        if reply is None:
            self._miss_the_server()
        elif self._push is not None:
            version, _, inner = unstamped(reply)
            self._take(Raw().decode(inner, self._given), self._push[1], version)
            self._push, self._alone = None, 0

    def _take(self, fresh: Tensor, pushed: Tensor, version: int) -> None:
        """The steps taken since the push, and what the codec left out of it, stay.

        A worker's batch-norm statistics stay its own, and the server is told how they move: it has the mean of all.
        """
        trained = self._node.trained
        self._node.count("exchanges")
        self._x[:trained].add_((fresh - self._given).sub_(pushed)[:trained])
        self._given[:trained].copy_(fresh[:trained])
        self._given[trained:].add_(pushed[trained:])
        self._version.fill_(version)

    def _miss_the_server(self) -> None:
        self._node.count("server lost")
        self._alone += self._due
        if self._alone > self._settings.patience:
            raise LostPeer(
                f"node {self._node.rank} has lost the server, node {self._settings.server}, for more than "
                f"{self._settings.patience} steps",
                rank=self._node.rank,
            )
