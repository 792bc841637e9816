"""Coming into a one-sided run: one by one, whenever a node is ready, and from whoever is inside already.

Whoever comes first starts with its own weights; everyone else compares what it brought with one who is inside, and
takes that one's weights. If that one dies in the middle, another is asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from flockstep.backends.loop.initial_sync import first_difference
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.loop.serialization import as_bytes, plain_tensors, take_bytes
from flockstep.backends.real.mailbox.http import Deadline
from flockstep.errors import Deadlock, LostPeer, Mismatch
from flockstep.message import NOTHING, Message

_LINES, _WEIGHTS = "flockstep lines", "flockstep weights"


class Admission:
    """One node's way in, and for those who come later."""

    def __init__(
        self, node: JoinedNode, strategy: str, reachable: Callable[[], tuple[int, ...]], *, newcomer: bool
    ) -> None:
        self._node, self._reachable, self._newcomer = node, reachable, newcomer
        self._lines = [f"strategy {strategy}", *node.flat.describe()]
        self._inside = False
        node.answer(_LINES, lambda peer, message: Message.of_bytes(json.dumps(self._lines).encode()))
        node.answer(_WEIGHTS, lambda peer, message: self._weights() if self._inside else NOTHING)

    async def come_in(self, timeout: float, pause: Callable[[float], None]) -> None:
        """Until somebody inside has given us weights, or it turns out that we are the first."""
        deadline = Deadline(timeout)
        while not self._inside:
            for peer in self._reachable():
                if await self._follow(peer):
                    self._inside = True
                    return
            # Whoever has a lower number may be the first, as long as it lives and may still come.
            if not self._newcomer and all(peer > self._node.rank for peer in self._node.peers()):
                self._inside = True
                return
            if self._newcomer and not self._node.peers():
                raise LostPeer(
                    f"node {self._node.rank} comes too late: no node of this run answers", rank=self._node.rank
                )
            try:
                pause(min(0.02, deadline.left()))
            except TimeoutError:
                rank = self._node.rank
                waited = f"node {rank} timed out after {timeout:g} s while joining: no running node sent its weights"
                raise Deadlock(waited, rank=rank) from None

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
