"""What third parties say of nodes in a run without keys: where one might look, and nothing that shuts anybody out."""

from __future__ import annotations

from flockstep.backends.real.membership.member_line import Member

_MOST = 1000


class Hearsay:
    """At most one line about each node, until the node itself has been asked."""

    def __init__(self) -> None:
        self._said: dict[int, Member] = {}

    def take(self, member: Member, *, lost: bool) -> bool:
        """Whether it is worth knowing: newer than what was said before, or other than what came to nothing."""
        said = self._said.get(member.rank)
        if said is None and len(self._said) >= _MOST:
            return False
        if said is not None and not (lost or member.incarnation > said.incarnation):
            return False
        self._said[member.rank] = member
        return True

    def about(self, rank: int) -> Member | None:
        """What is said of a node."""
        return self._said.get(rank)

    def drop(self, rank: int) -> None:
        """The node itself has spoken, or was not where it is said to be."""
        self._said.pop(rank, None)

    def ranks(self) -> list[int]:
        """Whom something is said of."""
        return sorted(self._said)
