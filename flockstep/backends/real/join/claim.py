"""A number for a node that comes to a run that is under way: one that nobody else has, or is promised.

All members that answer are asked, and none may say no. Where the lowest dies in the middle, two may each have been
promised one number by some; they meet at the next member, the second of them loses there, and asks for another.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from flockstep.backends.real.mailbox.identity_query import Identity, fetch
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.wire import MOST_RANKS, Refused
from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.membership.numbers import ADDRESS, Verdict
from flockstep.backends.real.security.keys import Keys
from flockstep.errors import FlockstepError, LostPeer, nodes_named

Ask = Callable[[str, int, str], Verdict]
"""Of an address, a number and a token, that member's answer."""
# A member that is slower than this is most likely dead, and a run has many.
_PATIENCE = 10.0


class Claim:
    """A newcomer's, from its first question until it is in."""

    def __init__(self, identity: Identity, ask: Ask, allowed: Sequence[int] | None) -> None:
        self._identity, self._ask, self._allowed = identity, ask, allowed
        self._token = secrets.token_hex(16)
        self._members: dict[int, Member] = {}
        self._refused: set[int] = set()
        self.promised: dict[int, str] = {}
        """Whatever the members have promised to anybody, as far as they were asked."""
        self.size = identity.size
        for line in identity.peers.split(","):
            self._meet(Member.read(line))

    def settle(self, wanted: int | None = None) -> int:
        """A number that is this node's alone: the one wanted, if it still can be had."""
        number = self._next() if wanted is None else wanted
        while not self._all_agree(number):
            self._refused.add(number)
            number = self._next()
        return number

    def _all_agree(self, number: int) -> bool:
        """Ask the lowest first, as everybody does, and whoever turns up meanwhile."""
        asked: set[Member] = set()
        agreed = False
        while waiting := [member for member in self._members.values() if member not in asked]:
            member = min(waiting, key=lambda member: member.rank)
            asked.add(member)
            try:
                verdict = self._ask(member.address, number, self._token)
            except (OSError, ValueError, Refused):
                # It is gone, or something else is there by now.
                continue
            if verdict.run != self._identity.run:
                continue
            self._learn(verdict)
            if not verdict.granted:
                return False
            agreed = True
        if not agreed:
            raise LostPeer("none of the nodes of the run that is to be joined answers any more")
        return True

    def _learn(self, verdict: Verdict) -> None:
        self.promised = verdict.promised | self.promised
        self.size = max(self.size, verdict.size)
        for member in verdict.peers:
            self._meet(member)

    def _meet(self, member: Member) -> None:
        known = self._members.get(member.rank)
        if known is None or member.incarnation > known.incarnation:
            self._members[member.rank] = member

    def _next(self) -> int:
        others = {number for number, token in self.promised.items() if token != self._token}
        taken: set[int] = {*range(self.size), *self._members, *others, *self._refused}
        if self._allowed is None:
            if max(taken) + 1 >= MOST_RANKS:
                raise FlockstepError(f"no number below {MOST_RANKS} is left")
            return max(taken) + 1
        left = [number for number in self._allowed if number not in taken]
        if not left:
            raise ValueError(
                f"the keys are of {nodes_named(list(self._allowed))}, who are or were in this run\n"
                "  to take the place of one that has died, say which: set RANK, or give --rank; "
                "for a new node, make keys with `flockstep keys create`, and copy their folder here"
            )
        return min(left)


def asking(identity: Identity, keys: Keys | None) -> Ask:
    """Over the network."""
    seconds = min(_PATIENCE, Limits(identity.timeout).connect)

    def ask(address: str, number: int, token: str) -> Verdict:
        return Verdict.read(fetch(address, keys, seconds, ADDRESS + f"{number}/{token}".encode()).body)

    return ask
