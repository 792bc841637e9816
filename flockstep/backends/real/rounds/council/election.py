"""One change of view: how the nodes of a view agree, once, on the view after it (single-decree Paxos).

A candidate asks all for a promise, then proposes a view; what enough have accepted is the next view. Each promises to
hear no candidate with a lower epoch, and says which view it has accepted before: a later candidate proposes that again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flockstep.backends.real.rounds.council.words import Attempt, Key, State, View
from flockstep.elastic import Elastic

_RANKS = 1000


def next_epoch(highest: int, rank: int) -> int:
    """A higher epoch that no other candidate takes: 3001 is the third, of node 1. Of a run that became two, attempts
    and states are told apart by it.
    """
    return (highest // _RANKS + 1) * _RANKS + rank % _RANKS


@dataclass
class Promise:
    """What a node has promised about the view that follows its own."""

    highest: int
    """No candidate with a lower epoch is heard."""
    is_given: bool = False
    """Whether it has promised itself to any: then it does nothing more in its view."""
    to: tuple[int, int, int] | None = None
    """The candidate who has its promise: epoch, rank and life."""
    at: float = 0.0
    """When that candidate was heard of last."""
    accepted: View | None = None
    accepted_in: int = 0

    def give(self, candidate: tuple[int, int, int], now: float) -> bool:
        """Promise itself to a candidate, or to the same one again; False if there is a better one."""
        if candidate[0] <= self.highest and candidate != self.to:
            return False
        self.is_given, self.to, self.at, self.highest = True, candidate, now, candidate[0]
        return True

    def accept(self, candidate: tuple[int, int, int], view: View, now: float) -> bool:
        """Agree to what a candidate proposes."""
        if candidate != self.to:
            return False
        self.accepted, self.accepted_in, self.at = view, candidate[0], now
        return True


@dataclass
class Election:
    """Of the candidate."""

    epoch: int
    base: View
    """The view that it would follow."""
    began: float
    since: float
    """When the first try began that this one continues."""
    dead: frozenset[int]
    """Members who are known to have died before this began: another life of theirs has knocked."""
    admitted: Mapping[int, int] = field(default_factory=dict)
    """Lives of those who come in, by rank; the state they get was taken before this began."""
    first_rounds: Mapping[str, int] = field(default_factory=dict)
    """Of each channel, the first round that is theirs as well."""
    states: dict[int, State] = field(default_factory=dict)
    """What members have answered."""
    lives: dict[int, int] = field(default_factory=dict)
    outside: set[int] = field(default_factory=set)
    """Who has answered that it is not in and has nobody's state."""
    enough_at: float | None = None
    """When as many had answered as may decide."""
    proposal: View | None = None
    accepted: set[int] = field(default_factory=set)

    @property
    def answered(self) -> set[int]:
        """Who has promised itself to this candidate."""
        return self.states.keys() | self.outside

    @property
    def everyone(self) -> set[int]:
        """All ranks that have ever been in."""
        return self.base.members.keys() | self.base.absent

    def hear(self, rank: int, life: int, state: State) -> None:
        """A promise."""
        meant = self.base.members.get(rank)
        if meant == life or (meant == 0 and not state.empty):
            if rank not in self.dead:
                self.states[rank], self.lives[rank] = state, life
        elif state.empty:
            self.states.pop(rank, None)
            self.outside.add(rank)

    def unheard(self) -> set[int]:
        """Members whose answer is missing."""
        return self.base.members.keys() - self.answered

    def are_enough(self, ranks: Iterable[int], elastic: Elastic) -> bool:
        """Whether those who have answered, or accepted, may decide. Unless less was asked for, of any two groups that
        may, some node is in both and lives; or all nodes of the run are in one of them (council.py says why).
        """
        ranks, size = set(ranks), len(self.base.members)
        voters = ranks - self.outside
        half = 2 * len(voters) == size and bool(self.dead - voters)
        safe = 2 * len(voters) > size or half or self.everyone <= ranks
        least = elastic.min_nodes
        return safe if least is None else len(ranks) >= least and (safe or 2 * least <= size)

    def propose(self, leader: int) -> View:
        """The next view: what may have been decided already; else those who have answered, and those who come in."""
        before = [state for state in self.states.values() if state.accepted is not None]
        if before:
            accepted = max(before, key=lambda state: state.accepted_in).accepted
            if accepted is not None:
                self.proposal = accepted
                return accepted
        self.proposal = self._next_view(leader)
        return self.proposal

    def _next_view(self, leader: int) -> View:
        base, states = self.base, self.states
        stay = {rank: self.lives[rank] for rank in base.members if self._stays(rank, leader)}
        # Whoever still waits for its state gets the newest.
        coming = dict(self.admitted)
        if coming:
            coming |= {rank: life for rank, life in stay.items() if states[rank].empty}
        members = {**stay, **coming}
        kept = members.keys() - coming.keys()
        return View(
            self.epoch,
            leader,
            members,
            frozenset(rank for rank in kept if states[rank].left),
            {rank: dict(base.firsts[rank]) for rank in kept if rank in base.firsts}
            | dict.fromkeys(coming, self.first_rounds),
            {rank: base.let_in[rank] for rank in kept if rank in base.let_in} | dict.fromkeys(coming, self.epoch),
            self._committed(),
            frozenset(self.everyone - members.keys()),
        )

    def _stays(self, rank: int, leader: int) -> bool:
        if rank not in self.states or rank in self.admitted:
            return False
        # Whoever was let in and has nothing yet gets it from the leader that let it in, or not at all.
        return not self.states[rank].empty or leader == self.base.leader

    def _committed(self) -> dict[Key, Attempt]:
        """Rounds that may have been committed: every member that answered has the result of the same attempt."""
        waited_in = {key for state in self.states.values() for key in state.open}
        committed = {}
        for key in waited_in:
            results = {self._result(rank, key) for rank in self.base.needed(key) if self._takes_part(rank, key)}
            if len(results) == 1 and (attempt := results.pop()) is not None:
                committed[key] = attempt
        return committed

    def _takes_part(self, rank: int, key: Key) -> bool:
        state = self.states.get(rank)
        return state is not None and not (state.left and self._result(rank, key) is None and key not in state.open)

    def _result(self, rank: int, key: Key) -> Attempt | None:
        state = self.states[rank]
        return state.delivered.get(key) or state.open.get(key)
