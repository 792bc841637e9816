"""A node that was started anew, on a machine whose clock was set back, is older by its number than it was before.

Before it says anything it takes a later number than all it is told of its former life. Where it hears of that only when
it is refused, it looks whether somebody still lives there: a twin, started after it, keeps the name. Otherwise that was
its own former life, and it goes on with a later number.
"""

from __future__ import annotations

from flockstep.backends.real.mailbox.http import Deadline
from flockstep.backends.real.mailbox.identity_query import ask_identity
from flockstep.backends.real.mailbox.wire import Refused
from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.membership.members import Members
from flockstep.backends.real.security.keys import Keys


class FormerLife:
    """What stands in this node's way, if anything does."""

    def __init__(self, run: bytes, members: Members, keys: Keys | None, seconds: float) -> None:
        self._run, self._members, self._keys, self._seconds = run, members, keys, seconds

    def gives_way(self, refused: Refused, speaker: Member, deadline: Deadline) -> bool:
        """Whether a call that this node made as ``speaker`` would be heard now."""
        if refused.status != 409:
            return False
        former = self._members.former(refused.peers)
        if former is not None and not self._has_a_twin(former, deadline):
            self._members.begin_after(former)
        # Another thread may have heard of it first.
        return self._members.me.incarnation > speaker.incarnation

    def _has_a_twin(self, former: Member, deadline: Deadline) -> bool:
        if former.address == self._members.me.address:
            return False
        try:
            seconds = min(self._seconds, deadline.left())
        except TimeoutError:
            return True
        try:
            there = ask_identity(former.address, self._keys, seconds, of=former.rank)
        except (OSError, ValueError, Refused):
            return False
        same = (there.run, there.rank) == (self._run.hex(), former.rank)
        return same and there.incarnation >= former.incarnation
