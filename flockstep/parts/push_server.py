"""A server: one model that workers push changes to, in any order, and read whenever they push.

    fold any M pushes:   v <- v + rate * sum_m (1 + staleness_m)^-damping * change_m;      t <- t + 1

Without a ``rate`` it is 1 / n, n the workers that live: once all have pushed, the model has moved by their mean.

Every push carries the version its worker had read; how many folds came since is its staleness. A worker's reply is held
until its own push is folded, and while it is more than ``most_ahead`` pushes ahead of the slowest: then the model comes
as a letter. Pushes are numbered by their worker, so that one whose reply was lost is folded once. A server that was
started anew, and is behind a worker's version, takes over the model that worker has read.

As long as a reply is held, or a change waits for others, the server has a question under way to every worker, which
that one answers at its end: so it hears of whoever ends or dies, and waits no longer for it. After any event either a
worker is free, and will push, end or die, or nothing waits: where all are held, what there is is folded, and the
slowest is let go.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from flockstep.codecs.codec import Codec
from flockstep.codecs.raw import Raw
from flockstep.codecs.tail import sparing
from flockstep.errors import LostPeer
from flockstep.message import NOTHING, Message, stamped, unstamped
from flockstep.node import Node
from flockstep.parts.push_protocol import BEHIND, HELD, HELLO
from flockstep.parts.statistics import statistics, trained

PUSH, RESTORE, END = "server push", "server restore", "server worker's end"
# How often a worker that lives is asked in vain: even where every message is lost, a run ends.
_TRIES = 1000


class Fresh(NamedTuple):
    """What a worker reads."""

    model: Tensor
    version: int


class Push(NamedTuple):
    """What a worker pushes."""

    number: int
    version: int
    """What it had read."""
    change: Tensor
    """What the server reads in it."""
    message: Message


class Server:
    """The model's keeper, on one of the nodes. Its handlers and its node's own pushes never run at once."""

    def __init__(
        self,
        node: Node,
        model: Tensor,
        codec: Codec,
        *,
        pushes_per_update: int,
        rate: float | None,
        damping: float,
        most_ahead: int | None,
        trains: bool,
    ) -> None:
        self.model, self._node, self._codec = model, node, sparing(codec, node)
        self._shown: Tensor | None = None
        self._fold, self._rate, self._damping, self._most_ahead = pushes_per_update, rate, damping, most_ahead
        self._version = node.keep("server version", torch.zeros(1, dtype=torch.int64))
        self._changes: list[tuple[Tensor, int]] = []
        self._numbers: dict[int, int] = {}
        # Those who have not begun yet are waited for as well.
        self._pushes = {rank: 0 for rank in range(node.size) if trains or rank != node.rank}
        self._folding: set[int] = set()
        self._waiting: set[int] = set()
        self._gone: set[int] = set()
        self._watched: set[int] = set()
        node.answer(PUSH, self._answer)
        node.answer(RESTORE, self._restore)

    @property
    def version(self) -> int:
        """How many folds there were."""
        return int(self._version)

    # Its own node -------------------------------------------------------------------------------------------------

    async def read(self) -> Fresh:
        """The model for the server's own node, and its version: of one moment, or what came between would be lost."""
        with self._node.undisturbed():
            return Fresh(self.model.clone(), self.version)

    def coded(self, change: Tensor, codec: Codec, *, version: int, number: int) -> Push:
        """As it is: nothing travels."""
        return Push(number, version, change, NOTHING)

    async def push(self, push: Push) -> Fresh:
        """The server's own node pushes, and is never held: it can read the model whenever it likes."""
        with self._node.undisturbed():
            alone = push.version == self.version and self._fold == 1 and self._share() == 1
            self._take(self._node.rank, push.change, push.version)
            self._settle()
            if alone:
                # Nobody else has moved the model: the sum is x itself, and what adding a difference rounds is not lost.
                x = self._node.params
                own = x.numel() if len(self._pushes) == 1 else self._node.trained
                self.model[:own].copy_(x[:own])
            return Fresh(self.model.clone(), self.version)

    def farewell(self) -> None:
        """The server's own node has taken its last step: from now on its vector shows the model."""
        with self._node.undisturbed():
            self._gone.add(self._node.rank)
            self._settle()
            self._shown = self._node.params
            self._show()

    # Handlers -----------------------------------------------------------------------------------------------------

    def _answer(self, peer: int, message: Message) -> Message:
        version, number, inner = unstamped(message)
        if number == HELLO:
            self._begin(peer)
        elif version > self.version:
            return BEHIND
        elif number > self._numbers.get(peer, HELLO):
            self._numbers[peer] = number
            codec = Raw() if inner.codec == Raw.name else self._codec
            self._take(peer, codec.decode(inner, self.model), version)
            self._settle(but=peer)
        if peer in self._waiting:
            return HELD
        return self._reply(peer)

    def _restore(self, peer: int, message: Message) -> Message:
        version, _, inner = unstamped(message)
        if version > self.version:
            self.model.copy_(Raw().decode(inner, self.model))
            self._version.fill_(version)
            self._node.count("server restored")
            self._show()
        return NOTHING

    # ----------------------------------------------------------------------------------------------------------------

    def _begin(self, peer: int) -> None:
        """A worker is new, or began anew: it starts where the slowest is."""
        self._gone.discard(peer)
        self._waiting.discard(peer)
        self._numbers[peer] = HELLO
        self._pushes[peer] = min((self._pushes[other] for other in self._workers() - {peer}), default=0)

    async def _watch(self, peer: int) -> None:
        """Until a worker has come to its end or died, or nothing waits for it any more."""
        for tries in range(1, _TRIES + 1):
            try:
                await self._node.ask(peer, END, NOTHING)
                ended = True
            except LostPeer:
                ended = tries == _TRIES
            with self._node.undisturbed():
                if ended:
                    self._gone.add(peer)
                if ended or peer not in self._node.peers() or not (self._waiting or self._changes):
                    self._watched.discard(peer)
                    self._settle()
                    return

    def _workers(self) -> set[int]:
        """Those who push and are still at it, as far as anybody knows."""
        return self._living() - self._gone

    def _living(self) -> set[int]:
        return self._pushes.keys() & {*self._node.peers(), self._node.rank}

    def _share(self) -> float:
        """What a push counts."""
        return 1 / max(1, len(self._living())) if self._rate is None else self._rate

    def _take(self, peer: int, change: Tensor, version: int) -> None:
        self._changes.append((change, version))
        self._gone.discard(peer)
        self._pushes[peer] = self._pushes.get(peer, 0) + 1
        self._folding.add(peer)
        if peer != self._node.rank:
            self._waiting.add(peer)

    def _settle(self, but: int | None = None) -> None:
        """Fold if it is time to, let go whoever need not wait any more, and watch those whom the others wait for."""
        workers = self._workers()
        self._waiting &= workers
        if len(self._changes) >= self._fold:
            self._fold_all()
        self._let_go(workers, but)
        if self._changes and workers <= self._waiting | self._folding:
            # Nobody is left who could bring another.
            self._fold_all()
            self._let_go(workers, but)
        if self._waiting or self._changes:
            for peer in sorted(workers - self._watched - {self._node.rank}):
                self._watched.add(peer)
                self._node.spawn(self._watch(peer))

    def _let_go(self, workers: set[int], but: int | None) -> None:
        slowest = min((self._pushes[rank] for rank in workers), default=0)
        for peer in sorted(self._waiting - self._folding):
            if self._most_ahead is None or self._pushes[peer] - slowest <= self._most_ahead:
                self._waiting.discard(peer)
                if peer != but:
                    self._node.send(peer, self._reply(peer))

    def _fold_all(self) -> None:
        node, share = self._node, self._share()
        for change, version in self._changes:
            staleness = max(0, self.version - version)
            node.count(f"staleness {_bucket(staleness)}")
            weight = share * (1 + staleness) ** -self._damping
            trained(self.model, node).add_(trained(change, node), alpha=weight)
            # Batch-norm statistics are no sum of steps: a push has them as they are, and the server a mean of them.
            statistics(self.model, node).lerp_(statistics(change, node), 1 / len(self._pushes))
        self._version += 1
        self._changes.clear()
        self._folding.clear()
        self._show()

    def _show(self) -> None:
        if self._shown is not None:
            self._shown.copy_(self.model)

    def _reply(self, peer: int) -> Message:
        return stamped(Raw().encode(self.model, self._node.rng), self.version, self._numbers.get(peer, HELLO))


def _bucket(staleness: int) -> str:
    """0, 1, 2-3, 4-7, ...: a histogram that stays short."""
    if staleness < 2:
        return str(staleness)
    low = 2 ** int(math.log2(staleness))
    return f"{low}-{2 * low - 1}"
