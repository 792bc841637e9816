"""Who takes part in rounds, and what has been committed: one node's decisions.

Every member tells the leader of its view which rounds it waits in. The leader begins a round when all who are needed
wait in it, and commits it when all of them have its result. Who is silent is left out by a new view. Any word may be
lost: what counts is said again.

Why it is safe. (1) Views are a chain: the members of a view agree on the next one by Paxos (election.py). Two groups
that may decide share a living node, for each has more than half of the members; or half, and began when one of the
other half was known to be dead (if both had begun so, each half would have lost somebody before the other voted); or
holds all ranks of the run, each of them a member or with nobody's state (so nobody else has any). (2) Whoever has
promised itself to a candidate neither obeys the old leader nor tells it results. So what a leader may have committed,
everybody who answers the candidate has the result of: that is what the next view delivers, and only what some member
lacks is begun again. So all who deliver a round deliver the same attempt, even one that is left out at once. (3) A
round needs all members: once a new view counts, the old one, which shares members with it, commits nothing.
A ``min_nodes`` of half a view or less gives up (1), and only that: each of several chains is safe by itself. What only
the dead have known is lost: a round that they alone had may be taken again.

When it is live: words arrive within half a patience, and of the members of the newest view enough live, as above.
Whoever has nobody's state asks its donor for it only once it is in the donor's view, and lives of a rank go up.
"""

from __future__ import annotations

from flockstep.backends.real.rounds.council.election import Election, Promise, next_epoch
from flockstep.backends.real.rounds.council.own_rounds import OwnRounds, Port
from flockstep.backends.real.rounds.council.round_leader import RoundLeader, Words
from flockstep.backends.real.rounds.council.signs_of_life import SignsOfLife
from flockstep.backends.real.rounds.council.words import (
    Accepted,
    Attempt,
    Commit,
    Key,
    Knock,
    Lead,
    NewView,
    Open,
    Propose,
    Refused,
    State,
    Status,
    Sync,
    View,
    Word,
)
from flockstep.elastic import Elastic

__all__ = ["BEATS", "Council", "Port"]

BEATS = 4
"""How often a node speaks within the time after which it would count as silent."""


class Council:
    """One node's part in it."""

    def __init__(self, rank: int, life: int, view: View, elastic: Elastic, patience: float, port: Port) -> None:
        self.rank, self.life, self.view = rank, life, view
        self._elastic, self._patience, self._port = elastic, patience, port
        self.empty = rank not in view.members
        """Whether this node has nobody's state yet."""
        self._let_in = 0
        """The epoch of the view by which it came in, where it came late."""
        self.has_left = False
        self.election: Election | None = None
        self._promise = Promise(view.epoch)
        self._rounds = OwnRounds(port)
        self._leading = RoundLeader(view)
        self._left = set(view.left)
        """Members whose programs are known to have returned."""
        self._signs = SignsOfLife(rank, view, patience)
        self._beat_at: float | None = None

    @property
    def knocking(self) -> dict[int, tuple[int, float]]:
        """Who wants to come in: which life, and when it last said so."""
        return self._signs.knocking

    @property
    def is_in(self) -> bool:
        """Whether this node is in the newest view it knows."""
        return self._is_in(self.view)

    @property
    def leads(self) -> bool:
        """Whether this node leads a view that nobody is about to replace."""
        return self.view.leader == self.rank and self.is_in and not self._promise.is_given

    @property
    def all_have_left(self) -> bool:
        """Whether this node may stop to answer: all members have left, or died. As long as none has ended, whoever
        knocks can still be let in.
        """
        others, gone = self.view.members.keys() - {self.rank}, self._signs.gone
        over = others <= self._left | gone | self._signs.dead()
        return self.has_left and over and not (self.knocking and not others & gone)

    # This node's own program --------------------------------------------------------------------------------------

    def bring(self, key: Key, now: float) -> None:
        """This node has come to a round; if that is not its own, in case that all are lost of whom it could hear."""
        self._rounds.bring(key)
        self._report(now)

    def withdraw(self, key: Key) -> bool:
        """This node has heard what came of a round that is not its own; False if it takes part in it by now."""
        return self._rounds.withdraw(key)

    def finished(self, key: Key, attempt: Attempt, now: float) -> None:
        """This node has the result of an attempt."""
        self._rounds.finished(key, attempt)
        self._report(now)

    def failed(self, key: Key, attempt: Attempt, now: float) -> None:
        """This node could not reach another in an attempt; both may live, as when a connection breaks."""
        self._rounds.failed(key, attempt)
        self._report(now)

    def fill(self, epoch: int, now: float) -> bool:
        """This node has taken over the state that was kept for it when it was let in, by the view of that epoch; False
        if it has been left out meanwhile, and must knock again.
        """
        if not (self.empty and self.is_in and self.view.let_in[self.rank] == epoch):
            return False
        self.empty, self._let_in = False, epoch
        # A candidate who was told that this node is empty must ask again.
        self._promise.to = None
        self._report(now)
        return True

    def leave(self, now: float) -> None:
        """This node's program has returned."""
        self.has_left = True
        self._report(now)

    def admit(self, firsts: dict[str, int], now: float) -> bool:
        """Let those in who knock: this node, which leads, stands between two steps and keeps its state for them."""
        coming = {rank: life for rank, (life, at) in self.knocking.items() if now - at <= self._patience}
        if not (coming and self.may_admit):
            return False
        self._elect(now, coming, firsts)
        return True

    @property
    def may_admit(self) -> bool:
        """Whether this node could let in those who knock: others do not train on where it has left."""
        others = (rank for rank in self.view.members if rank != self.rank and not self._signs.has_ended(rank))
        is_furthest = not self.has_left or all(rank in self._left for rank in others)
        return self.leads and bool(self.knocking) and is_furthest and not self.empty

    # What is heard ------------------------------------------------------------------------------------------------

    def gone(self, rank: int) -> None:
        """Nothing listens where a node was: its process has ended."""
        if rank not in self._signs.gone:
            self._signs.gone.add(rank)
            self._beat_at = None

    def hear(self, sender: int, life: int, word: Word, now: float) -> None:
        """A word of another node."""
        if self._signs.is_of_the_past(sender, life):
            return
        if isinstance(word, Knock):
            self._hear_knock(sender, life, now)
            return
        self._signs.hear(sender, life, now)
        self._hear_of_rounds(sender, life, word, now)
        self._hear_of_views(sender, life, word, now)

    def _hear_knock(self, sender: int, life: int, now: float) -> None:
        if self.view.members.get(sender) == life:
            # It is in already, and may not have heard.
            self._port.say(sender, NewView(self.view))
        else:
            self._signs.hear_knock(sender, life, now)

    def _hear_of_rounds(self, sender: int, life: int, word: Word, now: float) -> None:
        match word:
            case Status():
                self._hear_status(sender, life, word, now)
            case Lead() if word.epoch < self.view.epoch:
                self._port.say(sender, NewView(self.view))
            case Lead() if word.epoch > self.view.epoch:
                # The view did not come through, or is without this node: either will be told now.
                self._port.say(sender, self._status())
            case Open() if self._obeys(sender, life, word.attempt):
                self._rounds.carry_out(word.key, word.attempt, word.ranks)
            case Commit() if self._obeys(sender, life, word.attempt):
                self._rounds.deliver(word.key, word.attempt)

    def _hear_of_views(self, sender: int, life: int, word: Word, now: float) -> None:
        match word:
            case Sync():
                self._hear_sync(sender, life, word, now)
            case Propose():
                if self._promise.accept((word.epoch, sender, life), word.view, now):
                    self._port.say(sender, Accepted(word.epoch))
                elif self._promise.to is not None:
                    self._port.say(sender, Refused(self._promise.highest))
            case State() | Accepted() if self.election is not None and word.epoch == self.election.epoch:
                if isinstance(word, State):
                    self.election.hear(sender, life, word)
                else:
                    self.election.accepted.add(sender)
                self._go_on(now)
            case Refused() if self.election is not None and word.epoch >= self.election.epoch:
                # Somebody else is at it: give way, and try again later if nothing comes of that.
                self.election = None
                self._promise.highest, self._promise.at = max(word.epoch, self._promise.highest), now
            case NewView():
                self._take(word.view, now)

    def _obeys(self, sender: int, life: int, attempt: Attempt) -> bool:
        view = self.view
        leads = sender == view.leader and view.has(sender, life)
        return leads and attempt.epoch == view.epoch and self.is_in and not self._promise.is_given

    def _hear_status(self, sender: int, life: int, status: Status, now: float) -> None:
        if status.epoch < self.view.epoch:
            # It learns from this whether it is in it.
            self._port.say(sender, NewView(self.view))
        elif status.epoch == self.view.epoch and self.view.has(sender, life):
            if status.left:
                self._left.add(sender)
            if self.view.leader == self.rank:
                self._leading.said[sender] = status
                self._lead(sender)

    # What a member says -------------------------------------------------------------------------------------------

    def _status(self) -> Status:
        if self._promise.is_given:
            # What the old leader does not know it cannot commit.
            return Status(self.view.epoch, {}, (), self.has_left)
        return Status(self.view.epoch, self._rounds.results(), self._rounds.failures(), self.has_left)

    def _report(self, now: float) -> None:
        if not self.is_in:
            return
        status = self._status()
        # All must learn who has left, to know when all have.
        for rank in self.view.members if self.has_left else (self.view.leader,):
            if rank != self.rank:
                self._port.say(rank, status)
        if self.view.leader == self.rank:
            self._leading.said[self.rank] = status
            self._lead(self.rank)

    # What a leader does -------------------------------------------------------------------------------------------

    def _lead(self, sender: int) -> None:
        if self.leads:
            self._tell(self._leading.advance(sender))

    def _tell(self, words: Words) -> None:
        for rank, word in words:
            if rank != self.rank:
                self._port.say(rank, word)
        # Itself last: by then all words are on their way.
        for rank, word in words:
            if rank == self.rank and isinstance(word, Open):
                self._rounds.carry_out(word.key, word.attempt, word.ranks)
            elif rank == self.rank and isinstance(word, Commit):
                self._rounds.deliver(word.key, word.attempt)

    # Time -----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Say again what may have been lost, and look who is silent."""
        self._signs.look(now)
        if self._beat_at is not None and now - self._beat_at < self._patience / BEATS:
            return
        self._beat_at = now
        if self.is_in:
            self._beat(now)

    def _beat(self, now: float) -> None:
        if self.view.leader == self.rank:
            for rank in self.view.members.keys() - {self.rank}:
                self._port.say(rank, Lead(self.view.epoch))
        self._report(now)
        if self.election is not None:
            self._go_on_or_begin_anew(self.election, now)
        elif self.leads:
            self._tell(self._leading.begin_again())
        if self.election is None and self._should_elect(now):
            self._elect(now)

    def _should_elect(self, now: float) -> bool:
        """Whether a new view is needed, and nobody with a lower rank will see to it: each waits for those before it."""
        if self.empty:
            return False
        signs, leader = self._signs, self.view.leader
        if self.leads:
            return any(signs.is_lost(rank, now) for rank in self.view.active if rank not in self._left)
        living = [rank for rank in sorted(self.view.members) if not signs.is_lost(rank, now)]
        turn = living.index(self.rank) * self._patience / 2
        if self._promise.is_given:
            return now - self._promise.at > self._patience + turn
        if signs.is_lost(leader, now):
            return signs.silence(leader, now) >= turn + (0.0 if signs.has_ended(leader) else self._patience)
        # Only one that trains has a state to give to those who knock.
        training = [rank for rank in living if rank not in self._left]
        return bool(self.knocking) and leader in self._left and not self.has_left and training[0] == self.rank

    # Views ----------------------------------------------------------------------------------------------------------

    def _elect(self, now: float, admitted: dict[int, int] | None = None, firsts: dict[str, int] | None = None) -> None:
        epoch, dead = next_epoch(self._promise.highest, self.rank), self._signs.dead()
        since = now if self.election is None else self.election.since
        self.election = election = Election(epoch, self.view, now, since, dead, admitted or {}, firsts or {})
        self._promise.give((epoch, self.rank, self.life), now)
        election.hear(self.rank, self.life, self._state(epoch))
        self._ask(election)
        self._go_on(now)

    def _go_on_or_begin_anew(self, election: Election, now: float) -> None:
        if self._signs.dead() > election.dead or now - election.began > 2 * self._patience:
            self._elect(now)
        else:
            self._go_on(now)
            self._ask(election)

    def _ask(self, election: Election) -> None:
        """Say again to each what it has not answered yet."""
        for rank in (election.everyone | self.knocking.keys()) - election.answered:
            self._port.say(rank, Sync(election.epoch, election.base))
        if election.proposal is not None:
            for rank in election.answered - election.accepted:
                self._port.say(rank, Propose(election.epoch, election.proposal))

    def _state(self, epoch: int) -> State:
        rounds, promise = self._rounds, self._promise
        accepted = promise.accepted, promise.accepted_in
        return State(epoch, rounds.results(), dict(rounds.delivered), self.has_left, self.empty, *accepted)

    def _hear_sync(self, sender: int, life: int, sync: Sync, now: float) -> None:
        self._take(sync.view, now)
        if self.view.is_after(sync.view):
            self._port.say(sender, NewView(self.view))
        elif not (self.is_in or self.empty):
            # It was left out, and its program has yet to notice.
            return
        elif self._promise.give((sync.epoch, sender, life), now):
            self.election = None
            self._port.say(sender, self._state(sync.epoch))
        else:
            self._port.say(sender, Refused(self._promise.highest))

    def _go_on(self, now: float) -> None:
        """Propose the next view once all have answered who may, if they are enough; then have it once enough agree."""
        election = self.election
        if election is None:
            return
        if election.proposal is None and self._may_propose(election, now):
            self._promise.accept((election.epoch, self.rank, self.life), election.propose(self.rank), now)
            election.accepted.add(self.rank)
            self._ask(election)
        if election.proposal is not None and election.are_enough(election.accepted, self._elastic):
            self._announce(election, election.proposal, now)

    def _may_propose(self, election: Election, now: float) -> bool:
        if not election.are_enough(election.answered, self._elastic):
            return False
        election.enough_at = election.enough_at or now
        if now - election.since > self._patience:
            # Those who come back do so together, as when a network is whole again: each gets time to answer.
            return not election.unheard() or now - election.enough_at > self._patience
        return all(self._signs.is_lost(rank, now) for rank in election.unheard())

    def _announce(self, election: Election, view: View, now: float) -> None:
        for rank in (election.everyone | view.members.keys()) - {self.rank}:
            self._port.say(rank, NewView(view))
        self._take(view, now)

    def _take(self, view: View, now: float) -> None:
        """A view that was decided: the next of this node's own, or one that it is not in."""
        if not view.is_after(self.view):
            return
        before, self.view = self.view, view
        self.election = None
        self._promise = Promise(max(view.epoch, self._promise.highest))
        self._signs.follow(view, now)
        if self.is_in:
            self._install(before, now)
        elif not self.empty:
            self._port.left_out(view)

    def _is_in(self, view: View) -> bool:
        # Whoever was let in anew meanwhile must take over another state than it has.
        fits = self.rank in view.let_in if self.empty else view.let_in.get(self.rank, 0) == self._let_in
        return fits and view.has(self.rank, self.life)

    def _install(self, before: View, now: float) -> None:
        view = self.view
        self._leading = RoundLeader(view)
        self._left = set(view.left)
        self._rounds.begin_anew(view.committed)
        self._port.installed(view, before)
        self._rounds.deliver_all(view.committed)
        self._report(now)
