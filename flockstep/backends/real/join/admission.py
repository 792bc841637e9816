"""Coming into a one-sided run: one by one, whenever a node is ready, and from whoever is inside already.

Whoever comes first starts with its own weights; everyone else compares what it brought with one who is inside, and
takes that one's weights. If that one dies in the middle, another is asked. Who has a checkpoint of its own goes on from
that.

When all nodes were lost at once, those that are started again find nobody inside. They wait for each other at the door,
and the one whose checkpoint is the newest goes in first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from flockstep.backends.loop import checkpoint
from flockstep.backends.loop.initial_sync import first_difference
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.loop.serialization import as_bytes, plain_tensors, take_bytes
from flockstep.backends.real.mailbox.http import Deadline
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.errors import Deadlock, FlockstepError, LostPeer, Mismatch, nodes_named
from flockstep.message import NOTHING, Message

_LINES, _WEIGHTS, _DOOR = "flockstep lines", "flockstep weights", "flockstep door"
_log = logging.getLogger("flockstep")


@dataclass(frozen=True)
class Waiting:
    """What one who is not inside yet says of itself."""

    newest: int | None
    """The step of its newest checkpoint."""
    returns: bool
    """Whether it was in this run before, and may go in first when all were lost."""
    founds: bool
    """Whether it comes for the first time, to a run that begins."""

    @classmethod
    def read(cls, text: str) -> Waiting | None:
        """What another says; None where that is not of this kind."""
        try:
            said = json.loads(text)
            newest = None if said["newest"] is None else int(said["newest"])
            return cls(newest, said["returns"] is True, said["founds"] is True)
        except (ValueError, TypeError, KeyError):
            return None


class Admission:
    """One node's way in, and for those who come later."""

    def __init__(self, node: JoinedNode, strategy: str, fabric: MailFabric, checkpoints: Path | None) -> None:
        self._node, self._fabric, self._checkpoints = node, fabric, checkpoints
        newest = None if checkpoints is None else checkpoint.newest_own(node, checkpoints)
        self._me = Waiting(newest, fabric.newcomer and fabric.founder, not fabric.newcomer)
        self._lines = [f"strategy {strategy}", *node.flat.describe()]
        self._inside = False
        node.answer(_LINES, lambda peer, message: Message.of_bytes(json.dumps(self._lines).encode()))
        node.answer(_DOOR, lambda peer, message: Message.of_bytes(json.dumps(asdict(self._me)).encode()))
        node.answer(_WEIGHTS, lambda peer, message: self._weights() if self._inside else NOTHING)

    async def come_in(self, timeout: float, pause: Callable[[float], None]) -> None:
        """Until somebody inside has given us weights, or it turns out that we are the first."""
        deadline, patience = Deadline(timeout), Deadline(Limits(timeout).back)
        while True:
            for peer in self._fabric.reachable():
                if await self._follow(peer):
                    return self._go_in()
            # Whoever has a lower number may be the first, as long as it lives and may still come.
            if self._me.founds and all(peer > self._node.rank for peer in self._node.peers()):
                return self._go_in()
            if self._me.returns and await self._is_first_again(patience):
                return self._go_in()
            if not self._me.returns and not self._me.founds and not self._node.peers():
                raise self._too_late("no node of this run answers")
            try:
                pause(min(0.02, deadline.left()))
            except TimeoutError:
                raise self._waited_in_vain(timeout) from None

    def _go_in(self) -> None:
        # Before the door opens: whoever has no checkpoint takes the weights of one who has taken up its own.
        if self._checkpoints is not None:
            checkpoint.load_own(self._node, self._checkpoints)
        self._inside = True

    async def _is_first_again(self, patience: Deadline) -> bool:
        """Whether all were lost, and this node is the one to begin, now that those who come back are here."""
        rank, waiting = self._node.rank, {self._node.rank: self._me}
        for peer in self._fabric.reachable():
            if (other := await self._at_the_door(peer)) is not None:
                waiting[peer] = other
        missing = [peer for peer in range(self._node.size) if peer not in waiting]
        ended = self._fabric.mailbox().members.ended()
        if missing and not (self._me.newest is not None and (patience.is_over or ended.issuperset(missing))):
            if ended.issuperset(missing) and len(waiting) == 1:
                raise self._too_late("all others have ended, and it has no checkpoint of its own to go on from")
            return False
        if waiting[min(waiting)].founds:
            # It begins as every run begins.
            return False
        first = max((peer for peer in waiting if waiting[peer].returns), key=lambda peer: (_step(waiting[peer]), -peer))
        if first == rank:
            _log.warning("node %d %s", rank, self._how_it_begins(missing))
        return first == rank

    async def _at_the_door(self, peer: int) -> Waiting | None:
        try:
            return Waiting.read((await self._node.ask(peer, _DOOR, NOTHING)).to_bytes().decode(errors="replace"))
        except LostPeer:
            return None

    def _how_it_begins(self, missing: list[int]) -> str:
        lost = f"without {nodes_named(missing)}: nobody trains any more" if missing else "as all nodes were lost"
        if self._me.newest is None:
            return f"begins again from the beginning, {lost} and there is no checkpoint"
        return f"goes on from its checkpoint at step {self._me.newest}, {lost}"

    def _too_late(self, why: str) -> LostPeer:
        return LostPeer(f"node {self._node.rank} comes too late: {why}", rank=self._node.rank)

    def _waited_in_vain(self, timeout: float) -> FlockstepError:
        rank = self._node.rank
        if self._me.returns and not self._node.peers():
            return self._too_late(f"no node of this run answered in {timeout:g} s, and it has no checkpoint of its own")
        waited = f"node {rank} timed out after {timeout:g} s while joining: no running node sent its weights"
        return Deadlock(waited, rank=rank)

    async def _follow(self, peer: int) -> bool:
        """Take the weights of a node that is inside; False if it is not, or was lost."""
        try:
            message = await self._node.ask(peer, _WEIGHTS, NOTHING)
            if not message.data.numel():
                return False
            theirs = json.loads((await self._node.ask(peer, _LINES, NOTHING)).to_bytes())
        except LostPeer:
            return False
        if theirs != self._lines:
            raise Mismatch(first_difference(theirs, self._lines, peer, self._node.rank), rank=self._node.rank)
        self._take(message)
        if self._node.ledger is not None:
            # How far all are, before the first step: a schedule by global progress begins where the others are.
            await self._node.ledger.ask(peer)
        return True

    def _tensors(self) -> list[Tensor]:
        return [plain for shared in self._node.flat.shared() for plain in plain_tensors(shared)]

    def _weights(self) -> Message:
        self._node.check_finite(self._node.params, "the model")
        return Message(torch.cat([as_bytes(tensor).cpu() for tensor in self._tensors()]), "weights", (), torch.uint8)

    def _take(self, message: Message) -> None:
        tensors = self._tensors()
        for tensor, part in zip(tensors, torch.split(message.data, [t.nbytes for t in tensors]), strict=True):
            # A copy, because a slice of a network buffer need not lie where a number may begin.
            take_bytes(tensor, part.clone())
        self._node.flat.settle()


def _step(waiting: Waiting) -> int:
    return -1 if waiting.newest is None else waiting.newest
