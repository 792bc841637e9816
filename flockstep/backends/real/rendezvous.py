"""What processes tell each other through the c10d store: addresses, who has returned, who died."""

from __future__ import annotations

import json
import time

from flockstep.backends.real import c10d


class Rendezvous:
    """One process's view of the store."""

    def __init__(self, store: c10d.Store, size: int, section: str = "") -> None:
        # A client of its own: a channel being connected holds another for as long as it takes.
        self._everyone = store.clone()
        self._store, self._size = c10d.PrefixStore(section, self._everyone), size

    def publish(self, rank: int, address: str) -> None:
        """Say where a node's mailbox is."""
        self._store.set(f"mailbox/{rank}", address)

    def look_up(self, rank: int, deadline: float) -> str:
        """Where a node's mailbox is; waits until it has one."""
        while not self._store.check([f"mailbox/{rank}"]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"node {rank} has no mailbox")
            time.sleep(0.01)
        return str(self._store.get(f"mailbox/{rank}").decode())

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
        """Who died."""
        if not self._everyone.add("dead", 0):
            return []
        return [rank for rank in range(self._size) if self._everyone.check([f"dead/{rank}"])]

    def gone_before(self, channel: str, round: int) -> list[int]:
        """Who returned without ever beginning this round; empty once all have returned."""
        if self.left() in (0, self._size):
            return []
        ranks = [rank for rank in range(self._size) if self._store.check([f"left/{rank}"])]
        begun = {rank: json.loads(self._store.get(f"left/{rank}")).get(channel, 0) for rank in ranks}
        return [rank for rank in ranks if begun[rank] <= round]
