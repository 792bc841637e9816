"""Signs of life: every node knocks at one other after another, at those it lost, and at whoever hung up."""

from __future__ import annotations

import threading
from collections import deque

from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.mailbox import Mailbox
from flockstep.errors import LostPeer


class Heartbeat:
    """A thread that keeps the list of members true while nobody asks anything."""

    def __init__(self, box: Mailbox, limits: Limits) -> None:
        self._box, self._limits = box, limits
        self._wake = threading.Condition()
        self._doubted: deque[int] = deque()
        self._told = self._wary = False
        self._closed = False
        self._last = -1
        box.desk.doubt = self.doubt
        box.members.told = self.told
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def doubt(self, rank: int) -> None:
        """Look at once whether a node still lives."""
        with self._wake:
            if rank not in self._doubted:
                self._doubted.append(rank)
            self._wake.notify_all()

    def told(self) -> None:
        """Somebody is said to have joined: look at once, unless the last such word was wrong."""
        with self._wake:
            self._told = not self._wary
            self._wake.notify_all()

    def close(self) -> None:
        """Knock no more. Call it after the mailbox is closed, which ends a knock that is under way."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                woken = self._wake.wait_for(lambda: self._doubted or self._told or self._closed, self._limits.beat)
                if self._closed:
                    return
                ranks = list(self._doubted) if woken else self._next()
                self._wary = self._wary and bool(woken)
                self._told = False
                self._doubted.clear()
            for rank in ranks:
                self._knock(rank)
            if not self._wary:
                self._meet()

    def _next(self) -> list[int]:
        """The next of the living in turn, and all who were lost."""
        alive = [rank for rank in self._box.members.alive() if self._box.look_up(rank) is not None]
        later = [rank for rank in alive if rank > self._last]
        turn = (later or alive)[:1]
        self._last = turn[0] if turn else -1
        return [*turn, *self._box.members.lost()]

    def _meet(self) -> None:
        """Ask those who are only said to be there; whoever makes them up costs one knock between two signs of life."""
        members = self._box.members
        for rank in members.unmet():
            self._knock(rank)
            if not members.line(rank):
                members.give_up_meeting(rank)
                with self._wake:
                    self._wary = True
                return

    def _knock(self, rank: int) -> None:
        try:
            self._box.knock(rank)
        except LostPeer:
            # The mailbox has noted it; whoever cares looks there.
            return
