"""Coming into an elastic run: together with the others at its beginning, or one by one while it is under way.

Those who begin together compare what they brought, and go on from the newest checkpoint that one of them has of its
own; without any, from the weights of the first. Who comes later takes over the state of a node that is there. When all
were lost at once, those who are started again wait for each other until enough are there; the one whose checkpoint is
the newest begins, and lets the others in.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from flockstep.backends.loop import checkpoint, initial_sync
from flockstep.backends.real.join.joined_node import RealJoinedNode
from flockstep.backends.real.mailbox.http import Deadline
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.rounds.live_checkpoint import pack, unpack
from flockstep.backends.real.rounds.taking_part import TakingPart
from flockstep.errors import LeftOut, LostPeer, nodes_named
from flockstep.message import NOTHING, Message

_DOOR = "flockstep elastic door"
_log = logging.getLogger("flockstep")


class ElasticDoor:
    """One node's way in."""

    def __init__(self, node: RealJoinedNode, part: TakingPart, strategy: str, folder: Path | None) -> None:
        self._node, self._part, self._folder = node, part, folder
        self._newest = None if folder is None else checkpoint.newest_own(node, folder)
        node.lines = initial_sync.lines(node, strategy)
        self._strategy, self._silent = strategy, False
        self._patience = Deadline(Limits(part.fabric.timeout).back)
        node.answer(_DOOR, self._say)

    def come_in(self) -> None:
        """Until this node is where the others are."""
        if not self._part.fabric.newcomer:
            try:
                self._node.driver.call(self._begin_together())
                return
            except LeftOut:
                _log.warning("node %d: the others have begun without it; it comes in where they are", self._node.rank)
        self._part.come_in(self._found)

    async def _begin_together(self) -> None:
        node = self._node
        await initial_sync.compare(node, self._strategy)
        mine = Message.of_bytes(json.dumps(self._newest).encode())
        said = await node.exchange([mine] * node.size, "door")
        steps = {rank: json.loads(said[rank].to_bytes()) for rank in node.view}
        newest = max((step for step in steps.values() if step is not None), default=None)
        if newest is None or self._folder is None:
            await initial_sync.take_weights_of_first(node)
            return
        if self._newest == newest:
            checkpoint.load_own(node, self._folder)
        if any(step != newest for step in steps.values()):
            await self._hand_on([rank for rank, step in steps.items() if step == newest])

    async def _hand_on(self, holders: list[int]) -> None:
        """Whoever has not got the newest checkpoint takes over the state of one who has."""
        node = self._node
        while True:
            giver = next((rank for rank in node.view if rank in holders), None)
            if giver is None:
                raise LostPeer("whoever had the newest checkpoint was lost", rank=node.rank)
            state = pack(*node.state()) if node.rank == giver else NOTHING
            wants = [NOTHING if to in holders else state for to in range(node.size)]
            received = await node.exchange(wants, "door")
            if giver in node.view:
                if node.rank not in holders:
                    node.take_over(*unpack(received[giver]))
                return

    # When all were lost -----------------------------------------------------------------------------------------------

    def _say(self, peer: int, message: Message) -> Message:
        council = self._part.fabric.assembly.council
        return Message.of_bytes(json.dumps([council.empty, council.view.epoch, self._newest]).encode())

    def _found(self) -> bool:
        """Whether this node is the one to begin the run again, as all who had its state are gone, and enough are back.

        Those who come for the first time have nothing, and are not asked.
        """
        fabric, me, council = self._part.fabric, self._node.rank, self._part.fabric.assembly.council
        if not fabric.founder:
            return False
        self._silent = False
        said = {peer: self._ask(peer) for peer in range(self._node.size) if peer != me}
        at_the_door = {peer: words for peer, words in said.items() if words is not None}
        if ended := self._part.fabric.mailbox().members.ended() - at_the_door.keys():
            who = nodes_named(sorted(ended))
            raise LostPeer(f"node {me} comes too late: {who} came to the end of the run", rank=me)
        if self._silent and not self._patience.is_over:
            # It may only be slow to answer.
            return False
        if any(not empty for empty, _, _ in at_the_door.values()) or not fabric.may_found(1 + len(at_the_door)):
            return False
        steps = {me: self._newest, **{peer: newest for peer, (_, _, newest) in at_the_door.items()}}
        if me != max(steps, key=lambda rank: (-1 if steps[rank] is None else steps[rank], -rank)):
            return False
        missing = sorted(set(range(self._node.size)) - steps.keys())
        if self._folder is not None:
            checkpoint.load_own(self._node, self._folder)
        where = "from the beginning" if self._newest is None else f"from its checkpoint at step {self._newest}"
        without = f", without {nodes_named(missing)}" if missing else ""
        _log.warning("node %d: all nodes were lost; it begins again %s%s", me, where, without)
        self._part.fabric.assembly.found(
            1 + max([council.view.epoch, *(epoch for _, epoch, _ in at_the_door.values())])
        )
        return True

    def _ask(self, peer: int) -> tuple[bool, int, int | None] | None:
        try:
            empty, epoch, newest = json.loads(self._part.fabric.ask_soon(peer, _DOOR, NOTHING).to_bytes())
            return bool(empty), int(epoch), None if newest is None else int(newest)
        except LostPeer as lost:
            self._silent = self._silent or not isinstance(lost.__cause__, ConnectionRefusedError)
            return None
        except (ValueError, TypeError):
            return None
