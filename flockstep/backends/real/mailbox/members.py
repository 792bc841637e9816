"""Who is there: every node's address and incarnation, who was lost and why, who has left.

What one node knows travels with its messages, a few lines at a time, so that the loss of the store, or of any node,
ends nothing. Of two lines about one node the one with the higher incarnation counts; a node has left for good. That a
node was lost is each node's own observation, and is not passed on: the next to ask it will see for itself.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flockstep.backends.real.mailbox.wire import MOST_RANKS

_LINE = re.compile(r"(\d{1,7})=([\w.:\[\]-]{1,255}:\d{1,5})/(\d{1,20})(/left)?", re.ASCII)
_LINES_PER_MESSAGE = 16
_MOST_CHARACTERS = 2**20
_MOST_MEMBERS = 10_000
_MOST_AHEAD = 24 * 3600 * 10**9


@dataclass(frozen=True)
class Member:
    """One line of the list."""

    rank: int
    address: str
    """``host:port`` of its mailbox."""
    incarnation: int
    """Grows when a node is started anew: of two nodes with one number the newer is meant."""
    left: bool = False

    def __str__(self) -> str:
        return f"{self.rank}={self.address}/{self.incarnation}{'/left' if self.left else ''}"

    @classmethod
    def read(cls, line: str) -> Member:
        """A line; ValueError where it is not one."""
        match = _LINE.fullmatch(line)
        if match is None or not _in_range(int(match[1]), match[2], int(match[3])):
            raise ValueError(f"not a line about a node: {line[:80]!r}")
        return cls(int(match[1]), match[2], int(match[3]), left=match[4] is not None)


class Members:
    """One node's view of all."""

    def __init__(self, me: Member, size: int) -> None:
        self.changed = threading.Condition()
        """Notified whenever anything here changes."""
        self._rank, self.size = me.rank, size
        # Newest news last.
        self._known: dict[int, Member] = {me.rank: me}
        self._lost: dict[int, str] = {}

    @property
    def me(self) -> Member:
        """This node's own line."""
        with self.changed:
            return self._known[self._rank]

    def leave(self) -> None:
        """This node's program has returned; it still answers."""
        with self.changed:
            self._put(replace(self.me, left=True))

    def learn(self, text: str) -> None:
        """Take over what another node knows; ValueError where that is not a list of nodes."""
        if len(text) > _MOST_CHARACTERS:
            raise ValueError("the list of peers is too long")
        news = [Member.read(line) for line in text.split(",")] if text else []
        latest = time.time_ns() + _MOST_AHEAD
        with self.changed:
            for member in news:
                # Believed, it would shut the node out for good: nothing the node says could ever be newer.
                if member.incarnation > latest:
                    raise ValueError(f"node {member.rank} is said to have started in the future: whose clock is wrong?")
            if len(self._known.keys() | {member.rank for member in news}) > _MOST_MEMBERS:
                raise ValueError(f"a run has at most {_MOST_MEMBERS} nodes")
            for member in news:
                self._consider(member)

    def _consider(self, member: Member) -> None:
        known = self._known.get(member.rank)
        if member.rank == self._rank or (known is not None and not _is_news(member, known)):
            return
        if known is None or member.incarnation > known.incarnation:
            self._lost.pop(member.rank, None)
        self._put(member)

    def _put(self, member: Member) -> None:
        self._known.pop(member.rank, None)
        self._known[member.rank] = member
        self.changed.notify_all()

    def heard(self, rank: int) -> None:
        """A node has just spoken: it lives."""
        with self.changed:
            if self._lost.pop(rank, None) is not None:
                self.changed.notify_all()

    def lose(self, rank: int, why: str) -> None:
        """A node did not answer."""
        with self.changed:
            self._lost[rank] = why
            self.changed.notify_all()

    def address(self, rank: int) -> str | None:
        """Where a node's mailbox is, if that is known."""
        with self.changed:
            known = self._known.get(rank)
            return known.address if known else None

    def incarnation(self, rank: int) -> int:
        """The newest incarnation known of a node; 0 if none is."""
        with self.changed:
            known = self._known.get(rank)
            return known.incarnation if known else 0

    def alive(self) -> tuple[int, ...]:
        """Everyone but this node who was not lost; those never heard of yet are counted in."""
        with self.changed:
            everyone = {*range(self.size), *self._known}
            return tuple(sorted(rank for rank in everyone if rank not in self._lost and rank != self._rank))

    def lost(self) -> dict[int, str]:
        """Who was lost, and why."""
        with self.changed:
            return dict(self._lost)

    def all_have_left(self) -> bool:
        """Whether nobody who lives still trains."""
        with self.changed:
            return all(rank in self._known and self._known[rank].left for rank in self.alive())

    def in_training(self) -> tuple[int, ...]:
        """Who lives, was heard of, and has not left."""
        with self.changed:
            return tuple(rank for rank in self.alive() if rank in self._known and not self._known[rank].left)

    def never_came(self) -> tuple[int, ...]:
        """Whom the run began with, and nobody has told of yet."""
        with self.changed:
            return tuple(rank for rank in self.alive() if rank not in self._known)

    def ended(self) -> set[int]:
        """Who had left when it was lost: most likely its program has come to its end."""
        with self.changed:
            return {rank for rank in self._lost if rank in self._known and self._known[rank].left}

    def everyone(self) -> str:
        """All that is known, for one who comes late."""
        with self.changed:
            return _text(self._known.values())

    def gossip(self) -> str:
        """What to tell with a message: this node, the newest news, and a few others."""
        with self.changed:
            lines = [member for member in self._known.values() if member.rank != self._rank]
            half = _LINES_PER_MESSAGE // 2
            older, newest = lines[:-half], lines[-half:]
            chosen = [*newest, *random.sample(older, min(len(older), half - 1))]
            return _text([self.me, *chosen])


def _in_range(rank: int, address: str, incarnation: int) -> bool:
    # The system takes a port modulo 2**16, and a frame has 8 bytes for an incarnation.
    return rank < MOST_RANKS and 0 < parse_address(address)[1] < 2**16 and incarnation < 2**64


def _is_news(member: Member, known: Member) -> bool:
    return (member.incarnation, member.left) > (known.incarnation, known.left)


def _text(members: Iterable[Member]) -> str:
    return ",".join(map(str, members))


def format_address(host: str, port: int) -> str:
    """``10.0.0.1:29600`` or ``[::1]:29600``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Host and port; ValueError where there is no port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
