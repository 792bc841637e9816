"""What a node knows about whether the others live."""

from __future__ import annotations

from flockstep.backends.real.rounds.council.words import View


class SignsOfLife:
    """Of the members of a view, and of those who want to come in."""

    def __init__(self, rank: int, view: View, patience: float) -> None:
        self._rank, self._view, self._patience = rank, view, patience
        self.knocking: dict[int, tuple[int, float]] = {}
        """Who wants to come in: which life, and when it last said so."""
        self.gone: set[int] = set()
        """Where nothing listens any more."""
        self._lives: dict[int, int] = {}
        self._heard: dict[int, float] = {}
        self._looked: float | None = None

    def follow(self, view: View, now: float) -> None:
        """There is a new view; each of its members begins with a whole patience."""
        self._view = view
        self.gone -= view.members.keys()
        self.knocking = {rank: knock for rank, knock in self.knocking.items() if view.members.get(rank) != knock[0]}
        self._heard = {rank: now for rank in view.members if rank != self._rank}

    def is_of_the_past(self, rank: int, life: int) -> bool:
        """Whether a word was under way when the node that said it died."""
        return life < max(self._lives.get(rank, 0), self._view.members.get(rank, 0))

    def hear(self, rank: int, life: int, now: float) -> None:
        """A node has spoken."""
        self._lives[rank] = life
        self.gone.discard(rank)
        if self._view.has(rank, life):
            self._heard[rank] = now

    def hear_knock(self, rank: int, life: int, now: float) -> None:
        """A node wants to come in."""
        self._lives[rank] = life
        self.gone.discard(rank)
        self.knocking[rank] = life, now

    def look(self, now: float) -> None:
        """Time passes."""
        if self._looked is not None and now - self._looked > self._patience / 2:
            # It was this node that stood still: what the others have said meanwhile it has yet to hear.
            self._heard = dict.fromkeys(self._heard, now)
        self._looked = now
        self.knocking = {rank: knock for rank, knock in self.knocking.items() if now - knock[1] <= self._patience}

    def silence(self, rank: int, now: float) -> float:
        """For how long a node has said nothing."""
        return now - self._heard.get(rank, now)

    def has_died(self, rank: int) -> bool:
        """Whether another life of a member has knocked."""
        return rank in self.knocking and self.knocking[rank][0] != self._view.members.get(rank)

    def dead(self) -> frozenset[int]:
        """All members of which that is known."""
        return frozenset(filter(self.has_died, self._view.members))

    def has_ended(self, rank: int) -> bool:
        """Whether a member has died or ended; one that has not come yet takes as long as it takes to come."""
        return self.has_died(rank) or (rank in self.gone and rank in self._heard)

    def is_lost(self, rank: int, now: float) -> bool:
        """Whether a member has ended, or been silent for too long."""
        if rank == self._rank:
            return False
        # Members and their leader speak to each other all the time, and members among themselves hardly ever.
        is_silent = self._view.leader in (rank, self._rank) and self.silence(rank, now) > self._patience
        return is_silent or self.has_ended(rank)
