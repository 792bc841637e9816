"""Who is there: every node's address and incarnation, who was lost and why, who has left.

What one node knows travels with its messages, a few lines at a time, so that the loss of the store, or of any node,
ends nothing. Of two lines about one node the one with the higher incarnation counts; a node has left for good. That a
node was lost is each node's own observation, and is not passed on: the next to ask it will see for itself.

A node speaks for itself alone. With keys a line is believed if the node it is about has signed it, whoever brings it.
Without, it is believed from that node itself; from anyone else it is hearsay, which tells where one might look. Only
what is believed is passed on, so that an honest node never carries what another has made up.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from flockstep.backends.real.membership.hearsay import Hearsay
from flockstep.backends.real.membership.member_line import Member

if TYPE_CHECKING:
    # Needed with keys only.
    from flockstep.backends.real.security.line_signatures import LineSignatures

_LINES_PER_MESSAGE = 16
_CERTIFICATES_PER_MESSAGE = 4
_MOST_CHARACTERS = 2**20
_MOST_MEMBERS = 10_000
# A certificate and a signature for each of them fit.
_MOST_CHARACTERS_SIGNED = 2**24
# Whoever took the last number could never be started anew. Times reach this in 2262.
_MOST_INCARNATION = 2**63
# As if it had been started a millisecond later: whatever counts lives in milliseconds sees another one, too.
_NEXT_LIFE = 10**6


class Members:
    """One node's view of all."""

    def __init__(self, me: Member, size: int, signatures: LineSignatures | None = None) -> None:
        self.changed = threading.Condition()
        """Notified whenever anything here changes."""
        self._rank, self.size, self._signatures = me.rank, size, signatures
        # Newest news last.
        self._known: dict[int, Member] = {}
        # What is heard again and again is neither read nor verified again.
        self._texts: set[str] = set()
        self._hearsay = Hearsay()
        self._lost: dict[int, str] = {}
        self._disbelieved = 0
        self.told: Callable[[], None] = lambda: None
        """Called when somebody is said to have joined, whom this node has not met."""
        with self.changed:
            self._put(self._signed(me))

    # This node ----------------------------------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        """This node's own line."""
        with self.changed:
            return self._known[self._rank]

    def leave(self) -> None:
        """This node's program has returned; it still answers."""
        with self.changed:
            self._put(self._signed(replace(self.me, left=True)))

    def former(self, text: str) -> Member | None:
        """This node's own newest line among these that it has not written in this life: a former one's, or a twin's."""
        try:
            mine = [member for member in _read(text) if member.rank == self._rank]
        except ValueError:
            return None
        later = [member for member in mine if self._is_later(member) and self._proven(member) is not None]
        return max(later, key=lambda member: member.incarnation, default=None)

    def begin_after(self, former: Member) -> None:
        """Be newer than a former life, whatever this machine's clock says."""
        with self.changed:
            if self.me.incarnation <= former.incarnation:
                self._put(self._signed(replace(self.me, incarnation=former.incarnation + _NEXT_LIFE)))

    def _is_later(self, member: Member) -> bool:
        me = self.me
        is_me = (member.incarnation, member.address) == (me.incarnation, me.address)
        return not is_me and me.incarnation <= member.incarnation < _MOST_INCARNATION - _NEXT_LIFE

    def _signed(self, me: Member) -> Member:
        if self._signatures is None:
            return me
        return replace(me, signature=self._signatures.sign(me.statement), certificate=self._signatures.certificate)

    # What is told -------------------------------------------------------------------------------------------------

    def learn(self, text: str, speaker: int | None = None) -> None:
        """Take over what a node knows; ValueError where that is not a list of nodes. Without a ``speaker`` each line is
        the word of the node it is about.
        """
        if len(text) > (_MOST_CHARACTERS if self._signatures is None else _MOST_CHARACTERS_SIGNED):
            raise ValueError("the list of peers is too long")
        news = [Member.read(line) for line in text.split(",") if line not in self._texts] if text else []
        for member in news:
            # Believed, it would shut the node out for good: nothing the node says could ever be newer.
            if member.incarnation >= _MOST_INCARNATION:
                raise ValueError(
                    f"node {member.rank} is said to have started after the year 2262: that leaves no later"
                )
        for member in news:
            # What is no news is not verified either: that is nearly all there is to hear.
            if member.rank != self._rank and self._is_news(member):
                self._consider(member, speaker)

    def _consider(self, member: Member, speaker: int | None) -> None:
        proven, joined = self._proven(member), False
        with self.changed:
            if proven is None:
                self._disbelieved += 1
                if speaker is None:
                    # From a store, or a user: whoever connects there will see whose certificate is shown.
                    joined = self._hear(member)
            elif self._signatures is None and speaker not in (None, member.rank):
                joined = self._hear(proven)
            elif self._is_news(proven):
                self._believe(proven)
        if joined:
            self.told()

    def _hear(self, member: Member) -> bool:
        """Whether this is somebody whom this node has not met."""
        known, said = self._known.get(member.rank), self._hearsay.about(member.rank)
        if known is not None and member.incarnation <= known.incarnation:
            return False
        if not self._hearsay.take(member, lost=member.rank in self._lost):
            return False
        self.changed.notify_all()
        return known is None and said is None and member.rank >= self.size

    def _believe(self, member: Member) -> None:
        known = self._known.get(member.rank)
        if known is None and len(self._known) >= _MOST_MEMBERS:
            self._disbelieved += 1
            return
        if known is None or member.incarnation > known.incarnation:
            self._lost.pop(member.rank, None)
        self._hearsay.drop(member.rank)
        self._put(member)

    def _proven(self, member: Member) -> Member | None:
        """The line with the certificate that proves it; without keys any line is its own proof."""
        if self._signatures is None:
            return replace(member, signature="", certificate="")
        statement, signature = member.statement, member.signature
        found = self._signatures.certificate_of(member.rank, statement, signature, member.certificate)
        return None if found is None else replace(member, certificate=found)

    def _is_news(self, member: Member) -> bool:
        with self.changed:
            known = self._known.get(member.rank)
            return known is None or (member.incarnation, member.left) > (known.incarnation, known.left)

    def _put(self, member: Member) -> None:
        if (before := self._known.pop(member.rank, None)) is not None:
            self._texts.discard(before.short)
        self._known[member.rank] = member
        self._texts.add(member.short)
        self.changed.notify_all()

    # What was seen ------------------------------------------------------------------------------------------------

    def heard(self, rank: int) -> None:
        """A node has just spoken: it lives."""
        with self.changed:
            if self._lost.pop(rank, None) is not None:
                self.changed.notify_all()

    def lose(self, rank: int, why: str) -> None:
        """A node did not answer."""
        with self.changed:
            if rank < self.size or rank in self._known:
                self._lost[rank] = why
                self.changed.notify_all()

    def not_at(self, rank: int, address: str) -> None:
        """A node was looked for at an address, and did not answer there, or somebody else did."""
        with self.changed:
            said = self._hearsay.about(rank)
            # Of one that this node has never met it is still the best there is.
            if said is not None and said.address == address and rank in self._known:
                self._hearsay.drop(rank)

    def give_up_meeting(self, rank: int) -> None:
        """Nobody of this number is where it is said to be."""
        with self.changed:
            self._hearsay.drop(rank)
            self.changed.notify_all()

    # Who is there -------------------------------------------------------------------------------------------------

    def address(self, rank: int) -> str | None:
        """Where a node's mailbox is, if that is known: where it said itself, as long as it is not lost."""
        with self.changed:
            known, said = self._known.get(rank), self._hearsay.about(rank)
            best = said if said is not None and (known is None or rank in self._lost) else known
            return best.address if best else None

    def incarnation(self, rank: int) -> int:
        """The newest incarnation a node has said to be; 0 if it has said none."""
        with self.changed:
            known = self._known.get(rank)
            return known.incarnation if known else 0

    def line(self, rank: int) -> str:
        """What a node said of itself, with the proof; empty if nothing."""
        with self.changed:
            return str(self._known.get(rank, ""))

    def alive(self) -> tuple[int, ...]:
        """Everyone but this node who was not lost; those never heard of yet are counted in."""
        with self.changed:
            everyone = {*range(self.size), *self._known}
            return tuple(sorted(rank for rank in everyone if rank not in self._lost and rank != self._rank))

    def unmet(self) -> list[int]:
        """Who is said to have joined, and has not been asked yet."""
        with self.changed:
            return [rank for rank in self._hearsay.ranks() if rank >= self.size and rank not in self._known]

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

    @property
    def disbelieved(self) -> int:
        """How many lines about others were not believed."""
        with self.changed:
            return self._disbelieved

    # What is passed on --------------------------------------------------------------------------------------------

    def everyone(self) -> str:
        """All that is known, for one who comes late."""
        with self.changed:
            return ",".join(map(str, self._tellable(self._known.values())))

    def gossip(self, shown: set[str] | None = None) -> str:
        """What to tell with a message: this node, the newest news, and a few others. ``shown`` are the certificates
        that have gone over the same connection before; each goes there once, and only a few with one message.
        """
        with self.changed:
            me, lines = self.me, [member for member in self._known.values() if member.rank != self._rank]
        lines = self._tellable(lines)
        half = _LINES_PER_MESSAGE // 2
        older, newest = lines[:-half], lines[-half:]
        chosen = [me, *reversed(newest), *random.sample(older, min(len(older), half - 1))]
        return ",".join(_told(chosen, set() if shown is None else shown))

    def _tellable(self, members: Iterable[Member]) -> list[Member]:
        return [member for member in members if member.signature or self._signatures is None]


def _told(members: Iterable[Member], shown: set[str]) -> Iterable[str]:
    room = _CERTIFICATES_PER_MESSAGE
    for member in members:
        new = bool(member.certificate) and member.certificate not in shown
        if not new or room:
            yield str(member) if new else member.short
        if new and room:
            room -= 1
            shown.add(member.certificate)


def _read(text: str) -> list[Member]:
    return [Member.read(line) for line in text.split(",")] if text else []
