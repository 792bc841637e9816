"""Letters: what a node sends without waiting for an answer, and what waits here until its program takes it.

Both piles are bounded. Where the receiver does not take its letters, it leaves the next one without an
acknowledgment; the sender's own pile grows, and when that is full, ``send`` waits. Two nodes that both send before
they receive are held up by none of this, as long as they stay within the bound.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable

from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.wire import Refused
from flockstep.backends.real.membership.members import Members
from flockstep.errors import LostPeer
from flockstep.message import Message

MOST_BYTES, LEAST_LETTERS = 64 * 2**20, 2
"""How much may wait of one peer, or for one: so many bytes, or so many letters where these are longer."""
# What a letter takes besides its data, so that empty ones are bounded, too.
_BESIDES = 1024


class Full(Refused):
    """Too much waits to be taken: to be sent once more."""

    STATUS = 503

    def __init__(self, reason: str) -> None:
        super().__init__(reason, self.STATUS)


class Pile:
    """Letters in their order, of one peer or for one."""

    def __init__(self) -> None:
        self._letters: deque[Message] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._letters)

    def has_room(self, message: Message) -> bool:
        """Whether one more is within the bound."""
        return len(self) < LEAST_LETTERS or self._bytes + _size(message) <= MOST_BYTES

    def put(self, message: Message) -> None:
        """Add one at the end."""
        self._letters.append(message)
        self._bytes += _size(message)

    def first(self) -> Message:
        """The oldest."""
        return self._letters[0]

    def take(self) -> Message:
        """The oldest, which then lies here no longer."""
        message = self._letters.popleft()
        self._bytes -= _size(message)
        return message

    def __str__(self) -> str:
        return f"{len(self)} letter{'s' * (len(self) != 1)} of {self._bytes / 2**20:.0f} MiB"


class Letters:
    """Those of one node, in and out. ``carry`` brings one to a peer's mailbox, and fails where that did not take it."""

    def __init__(self, members: Members, limits: Limits, carry: Callable[[int, Message], None]) -> None:
        self._members, self._limits, self._carry = members, limits, carry
        self._rank, self._changed = members.me.rank, members.changed
        self._in: dict[int, Pile] = defaultdict(Pile)
        self._out: dict[int, Pile] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False

    def send(self, peer: int, message: Message) -> None:
        """Queue one; a thread per peer carries them, in order. Waits for room; LostPeer where none comes."""
        with self._changed:
            pile, seconds = self._pile_for(peer), self._limits.timeout
            self._changed.wait_for(lambda: self._closed or pile.has_room(message), seconds)
            if self._closed:
                raise self._lost(peer, "send", "this mailbox is closed")
            if not pile.has_room(message):
                raise self._lost(peer, "send", f"it has taken no letter in {seconds:g} s, and {pile} wait for it here")
            pile.put(message)
            self._changed.notify_all()

    def receive(self, peer: int) -> Message:
        """Block until the next one of a peer is here."""
        seconds = self._limits.timeout
        with self._changed:
            self._changed.wait_for(lambda: self._in[peer] or peer in self._members.lost() or self._closed, seconds)
            if self._in[peer]:
                self._changed.notify_all()
                return self._in[peer].take()
        raise self._lost(peer, "receive", self._members.lost().get(peer, f"nothing came in {seconds:g} s"))

    def deliver(self, sender: int, message: Message) -> None:
        """Lay one down that has come; Full where the program takes none for so long that its sender must hear of it."""
        with self._changed:
            pile = self._in[sender]
            self._changed.wait_for(lambda: self._closed or pile.has_room(message), self._limits.early)
            if self._closed or not pile.has_room(message):
                raise Full(f"node {self._rank} takes no letters of node {sender}: {pile} wait there")
            pile.put(message)
            self._changed.notify_all()

    def close(self) -> None:
        """Carry no more. Call it when nothing can be on its way any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _pile_for(self, peer: int) -> Pile:
        if peer not in self._out:
            self._out[peer] = Pile()
            if self._closed:
                return self._out[peer]
            thread = threading.Thread(target=self._post, args=(peer,), name=f"letters to node {peer}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self._out[peer]

    def _post(self, peer: int) -> None:
        pile = self._out[peer]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or pile)
                if self._closed:
                    return
                message = pile.first()
            try:
                self._carry(peer, message)
            except Full:
                # It lives, and may take them yet. Whoever sends more than fits meanwhile will hear of it.
                continue
            except LostPeer:
                # Noted among the members; a letter has nobody waiting for its way back.
                pass
            with self._changed:
                pile.take()
                self._changed.notify_all()

    def _lost(self, peer: int, verb: str, why: str) -> LostPeer:
        return LostPeer(f"node {self._rank} lost node {peer} in {verb}: {why}", rank=self._rank)


def _size(message: Message) -> int:
    return message.data.numel() + _BESIDES
