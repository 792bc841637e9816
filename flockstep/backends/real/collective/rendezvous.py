"""What processes tell each other through the c10d store: addresses, who has returned, who died."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress

from flockstep.backends.real.collective import c10d
from flockstep.backends.real.mailbox.endpoint import Endpoint, ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.membership.member_line import Member

LOST = (RuntimeError,)
"""What a store raises when whoever holds it is gone; torch's own errors are of this kind."""


class Rendezvous:
    """One process's view of the store."""

    def __init__(self, store: c10d.Store, size: int, section: str = "") -> None:
        # A client of its own: a channel being connected holds another for as long as it takes.
        self._everyone = store.clone()
        self._store, self._size = c10d.PrefixStore(section, self._everyone), size

    def open_endpoint(self, rank: int, timeout: float) -> Endpoint:
        """A mailbox that the others find through the store, and whose node finds the others there."""
        # What the run is called: drawn by whoever comes first, the same for all.
        run = bytes.fromhex(self._store.compare_set("run", "", uuid.uuid4().hex).decode())
        site, before = ListenOn.from_environment(rank), self.find(rank) or ""
        house = open_endpoint(run, rank, self._size, Limits(timeout), site, self.find, said_before=before)
        self.publish(house.box.members.me)
        return house

    def publish(self, me: Member) -> None:
        """Let others find this node's line; without a store, they hear of it by mail alone."""
        with suppress(*LOST):
            self._store.set(f"mailbox/{me.rank}", str(me))

    def comes_again(self, rank: int) -> bool:
        """Whether a node of this number has been here before."""
        return int(self._store.add(f"came/{rank}", 1)) > 1

    def find(self, rank: int) -> str | None:
        """What a node published; None if nothing yet, or if the store is gone."""
        with suppress(*LOST):
            if self._store.check([f"mailbox/{rank}"]):
                return str(self._store.get(f"mailbox/{rank}").decode())
        return None

    def leave(self, rank: int, rounds: dict[str, int]) -> None:
        """A node's program has returned, having begun so many rounds on each channel."""
        self._store.set(f"left/{rank}", json.dumps(rounds))
        self._store.add("left", 1)

    def left(self) -> int:
        """How many have, or died."""
        return int(self._store.add("left", 0)) + int(self._everyone.add("dead", 0))

    def bury(self, rank: int) -> None:
        """Say of a node that it died: nobody need wait for it."""
        self._everyone.set(f"dead/{rank}", "")
        self._everyone.add("dead", 1)

    def dead(self) -> list[int]:
        """Who died, as far as the store tells."""
        with suppress(*LOST):
            if self._everyone.add("dead", 0):
                return [rank for rank in range(self._size) if self._everyone.check([f"dead/{rank}"])]
        return []

    def gone_before(self, channel: str, round: int) -> list[int]:
        """Who returned without ever beginning this round; empty once all have returned."""
        if self.left() in (0, self._size):
            return []
        ranks = [rank for rank in range(self._size) if self._store.check([f"left/{rank}"])]
        begun = {rank: json.loads(self._store.get(f"left/{rank}")).get(channel, 0) for rank in ranks}
        return [rank for rank in ranks if begun[rank] <= round]
