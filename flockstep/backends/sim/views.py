"""Elastic rounds in virtual time: a mean is taken by the nodes that are there, and those who come are taken in.

A node that is lost before a round is committed is left out of it, once its silence has lasted as long as the run's
patience: the others, who still have what they brought, begin the round again. Too few to go on wait. Who comes knocks,
and gets a live checkpoint from the first node of the view that stands between two steps; from there on it is one more
node at the same place of the same program, and rounds wait for it. Rounds that were under way at that moment are not
its own: it only hears what came of them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flockstep.backends.sim.collectives import Collectives, Meeting
from flockstep.backends.sim.kernel import Suspend, Task
from flockstep.backends.sim.wires import Flow, Wires
from flockstep.elastic import Elastic
from flockstep.errors import nodes_named
from flockstep.message import NOTHING, Message, ring_bytes

if TYPE_CHECKING:
    from flockstep.backends.sim.node import SimNode
    from flockstep.backends.sim.training import TrainingNode
    from flockstep.backends.sim.world import World

# Report, word, result, commit: what a round takes besides what is exchanged, in one-way latencies.
_WORDS = 4
# Chunks to those who sum them, sums to all.
_STAGES_OF_A_MEAN = 2


@dataclass(frozen=True)
class LiveCheckpoint:
    """All that a node is between two steps, as another one takes it over."""

    donor: int
    params: Tensor
    kept: dict[str, Tensor]
    optimizer: dict[str, Any]
    step_count: int
    taken: dict[str, int]
    """Of each channel, how many rounds have gone into it."""
    view: tuple[int, ...]
    over: bool = False
    """Whether the donor's program had returned: there is nothing left to do."""

    @classmethod
    def of(cls, node: TrainingNode, *, over: bool = False) -> LiveCheckpoint:
        """A copy; what is a node's own stays with it."""
        taken = dict(node.channels.rounds)
        for channel, round in node.rounds_under_way():
            taken[channel] = min(taken[channel], round)
        kept = {name: tensor.clone() for name, tensor in node.kept.items() if name not in node.own}
        return cls(
            node.rank,
            node.params.clone(),
            kept,
            copy.deepcopy(node.optimizer.state_dict()),
            node.step_count,
            taken,
            node.view,
            over,
        )

    @property
    def nbytes(self) -> int:
        """What travels."""
        slots = [v for slot in self.optimizer["state"].values() for v in slot.values() if isinstance(v, Tensor)]
        return sum(tensor.nbytes for tensor in (self.params, *self.kept.values(), *slots))


@dataclass(eq=False)
class _Transfer:
    """A live checkpoint on its way."""

    donor: int
    task: Task
    flow: Flow | None = None
    ended: bool = False


class Views(Collectives):
    """All collectives of a run whose nodes come and go."""

    def __init__(self, world: World, wires: Wires, elastic: Elastic) -> None:
        super().__init__(world.kernel, wires, world.size)
        self._world, self._elastic = world, elastic
        self.view = set(range(world.size))
        """Who takes part in what is committed next."""
        self._lost: set[int] = set()
        """Of the view, whose silence has been noticed."""
        self._over: set[int] = set()
        self._at_the_door: dict[int, Task] = {}
        self._needed_from: dict[int, dict[str, int]] = {}
        """Of who came late: its first round of each channel."""
        self._on_its_way: dict[int, _Transfer] = {}
        """Live checkpoints that are being sent, by whom they are for."""
        self._results: dict[tuple[str, int], Tensor | list[Message]] = {}
        """What came of rounds that those who come may still ask for."""

    # Rounds ------------------------------------------------------------------------------------------------------

    def _bring(self, meeting: Meeting, node: SimNode, thing: Any) -> None:
        task = meeting.tasks[node.rank]
        if not task.main:
            node.begun.append((meeting.channel, meeting.round, task))
        meeting.brought[node.rank] = thing
        if meeting.round < self._first_round(node.rank, meeting.channel):
            meeting.listeners[node.rank] = meeting.tasks.pop(node.rank)
            self._tell_listeners(meeting)
        self._try(meeting)

    def _where(self, meeting: Meeting) -> str:
        lost = sorted(self.view & self._lost)
        if not lost:
            return str(meeting)
        least, left = self._elastic.least(len(self.view)), len(self.view) - len(lost)
        short = f"{nodes_named(lost)} lost, {left} of {len(self.view)} left"
        return f"{meeting}: {short}, and at least {least} must be there (Elastic.min_nodes)"

    def _first_round(self, rank: int, channel: str) -> int:
        return self._needed_from.get(rank, {}).get(channel, 0)

    def _try(self, meeting: Meeting) -> None:
        """Begin a round that is complete; who is lost and cannot be left out is missing in it."""
        if meeting.listeners and self.view <= meeting.listeners.keys():
            self._leave_it_to_listeners(meeting)
        needed = {rank for rank in self.view if self._first_round(rank, meeting.channel) <= meeting.round}
        if not meeting.ranks and needed and needed <= meeting.brought.keys():
            meeting.ranks = tuple(sorted(needed))
            self._begin(meeting)

    def _leave_it_to_listeners(self, meeting: Meeting) -> None:
        """None of those whose round it was is left: those who came since have what their donors would have brought."""
        for rank in meeting.listeners:
            self._needed_from[rank][meeting.channel] = meeting.round
        meeting.tasks.update(meeting.listeners)
        meeting.listeners.clear()

    def _begin_mean(self, meeting: Meeting) -> None:
        ranks = meeting.ranks
        # What was brought stays as it is: the round may have to be begun again.
        total = self._mean_of(meeting, [meeting.brought[rank].clone() for rank in ranks])
        nbytes = ring_bytes(total.nbytes, len(ranks))
        for rank in ranks:
            self._book_mean(self._world.nodes[rank], ranks, nbytes)
        attempt = meeting.attempt

        def done() -> None:
            if meeting.attempt == attempt:
                self._commit(meeting, total)

        delay = (_STAGES_OF_A_MEAN + _WORDS) * self._wires.longest_delay(ranks)
        meeting.flow = self._wires.among(ranks, nbytes, delay, done)

    def _book_mean(self, node: SimNode, ranks: tuple[int, ...], nbytes: int) -> None:
        node.tally.bytes_sent += nbytes
        node.tally.bytes_received += nbytes
        if node.timeline is not None:
            for to in ranks:
                if to != node.rank:
                    node.timeline.send(node.rank, to, round(nbytes / (len(ranks) - 1)))

    def _begin_exchange(self, meeting: Meeting) -> None:
        ranks, table = meeting.ranks, meeting.brought
        for rank in ranks:
            node = self._world.nodes[rank]
            for to in ranks:
                if to != rank:
                    node.sent(to, table[rank][to].nbytes)
                    self._world.nodes[to].tally.bytes_received += table[rank][to].nbytes
        sent = [sum(table[rank][to].nbytes for to in ranks if to != rank) for rank in ranks]
        received = [sum(table[by][rank].nbytes for by in ranks if by != rank) for rank in ranks]
        attempt = meeting.attempt

        def done() -> None:
            if meeting.attempt == attempt:
                results = {to: [table[by][to] if by in ranks else NOTHING for by in range(self._size)] for to in ranks}
                self._end(meeting, results, [message.copy() for message in results[ranks[0]]])

        delay = (1 + _WORDS) * self._wires.longest_delay(ranks)
        meeting.flow = self._wires.among(ranks, max(*sent, *received), delay, done)

    def _commit(self, meeting: Meeting, total: Tensor) -> None:
        self._end(meeting, {rank: total.clone() for rank in meeting.ranks}, total)

    def _end(self, meeting: Meeting, results: dict[int, Any], heard: Tensor | list[Message]) -> None:
        """Those who took part have their results; ``heard`` is what others are told of it."""
        if any(not task.main for task in meeting.tasks.values()):
            self._results = {key: result for key, result in self._results.items() if self._may_be_asked_for(*key)}
            self._results[meeting.channel, meeting.round] = heard
        self._tell_listeners(meeting)
        for rank in meeting.ranks:
            self._world.nodes[rank].view = meeting.ranks
        self._deliver(meeting, results)

    def _may_be_asked_for(self, channel: str, round: int) -> bool:
        """Whether a node that has come, or will come, may still have to hear of a round."""

        def asks(node: SimNode) -> bool:
            behind = node.channels.rounds.get(channel, 0) <= round < self._first_round(node.rank, channel)
            return behind or (channel, round) in node.rounds_under_way()

        return any(node.alive and asks(node) for node in self._world.nodes)

    def _tell_listeners(self, meeting: Meeting) -> None:
        """Who came while a round was under way hears what came of it, as soon as anything has."""
        heard = self._results.get((meeting.channel, meeting.round))
        if heard is None:
            return
        for rank, task in meeting.listeners.items():
            own = heard.clone() if isinstance(heard, Tensor) else [message.copy() for message in heard]
            self._kernel.at(self._kernel.now, self._kernel.resume, task, own)
            del meeting.brought[rank]
        meeting.listeners.clear()
        if not meeting.tasks:
            # It was over long ago, and was opened anew only to be heard of.
            self._open.pop((meeting.channel, meeting.round), None)

    # Who is lost -------------------------------------------------------------------------------------------------

    def lose(self, rank: int) -> None:
        """A node died: a round that it is in stands still until its silence is noticed."""
        for meeting in list(self._open.values()):
            for held in (meeting.brought, meeting.tasks, meeting.listeners):
                held.pop(rank, None)
            if rank in meeting.ranks:
                self._interrupt(meeting)
        self._at_the_door.pop(rank, None)
        self._over.discard(rank)
        for newcomer, transfer in list(self._on_its_way.items()):
            if rank in (transfer.donor, newcomer):
                self._break_off(newcomer, transfer)
        life = self._world.nodes[rank]
        self._kernel.first(self._kernel.now + self._elastic.virtual_patience, self.notice, life)

    def _interrupt(self, meeting: Meeting) -> None:
        if meeting.flow is not None:
            self._wires.cut(meeting.flow)
        meeting.flow, meeting.ranks = None, ()
        meeting.attempt += 1
        for rank, task in meeting.tasks.items():
            task.mark("waiting")
            self._world.nodes[rank].count("rounds begun again")

    def _break_off(self, newcomer: int, transfer: _Transfer) -> None:
        del self._on_its_way[newcomer]
        transfer.ended = True
        if transfer.flow is not None:
            self._wires.cut(transfer.flow)
        if self._world.nodes[newcomer].alive:
            # It stands at the door again, and nobody need wait for it.
            self._at_the_door[newcomer] = transfer.task
            self._lost.add(newcomer)
            self._kernel.at(self._kernel.now, self.settle)

    def notice(self, life: SimNode) -> None:
        """A node's silence has lasted long enough; unless it has been heard of again meanwhile."""
        if self._world.nodes[life.rank] is life and not life.alive:
            self._lost.add(life.rank)
            self.settle()

    def settle(self) -> None:
        """Go on without those who are lost, if enough are left: those who knock count, since they go no other way."""
        back, agree = self._at_the_door.keys() & self.view, self.agreeing
        if agree and self.may_go_on(agree | back):
            self.view -= self._lost
            self._lost.clear()
        elif not self._running() and not self._over and self.may_go_on(back):
            self._begin_anew()
        for meeting in list(self._open.values()):
            self._try(meeting)
        self._admit_to_what_is_over()

    @property
    def agreeing(self) -> set[int]:
        """Who could agree on a new view now: one whose silence has not been noticed yet says nothing either."""
        left = self.view - self._lost
        return {rank for rank in left if self._world.nodes[rank].responds(self._kernel.now)}

    def may_go_on(self, ranks: set[int]) -> bool:
        """Whether these, of the view, could go on without the rest."""
        return len(ranks) >= self._elastic.least(len(self.view))

    def _running(self) -> set[int]:
        away = {*self._at_the_door, *self._on_its_way, *self._over}
        return {rank for rank in self.view if self._world.nodes[rank].alive and rank not in away}

    # Who comes ---------------------------------------------------------------------------------------------------

    def knock(self, node: SimNode) -> Suspend:
        """Wait to be let in; get a live checkpoint, or None where all begin anew."""

        def begin(task: Task) -> None:
            task.mark("waiting")
            task.where = lambda: (
                f"the door: of the last nodes that had the run's state, {sorted(self.view)}, none is left"
            )
            self._at_the_door[node.rank] = task
            # Whoever it was before is gone, noticed or not.
            self._lost.add(node.rank)
            self.settle()

        return Suspend(begin)

    def at_boundary(self, donor: TrainingNode) -> None:
        """A node stands between two steps: whoever waits may have its state."""
        # At step 0 a program that takes over would begin as if it were the first.
        if not self._at_the_door or donor.rank not in self.view or donor.step_count == 0:
            return
        checkpoint = LiveCheckpoint.of(donor)
        for rank in sorted(self._at_the_door):
            self._needed_from[rank] = dict(donor.channels.rounds)
            self._give(rank, checkpoint)

    def _give(self, rank: int, checkpoint: LiveCheckpoint) -> None:
        task, newcomer = self._at_the_door.pop(rank), self._world.nodes[rank]
        self.view.add(rank)
        self._lost.discard(rank)
        task.mark("talking")
        self._world.nodes[checkpoint.donor].sent(rank, checkpoint.nbytes)

        transfer = self._on_its_way[rank] = _Transfer(checkpoint.donor, task)

        def arrived() -> None:
            if not transfer.ended:
                del self._on_its_way[rank]
                newcomer.tally.bytes_received += checkpoint.nbytes
                self._kernel.resume(task, checkpoint)

        transfer.flow = self._wires.send(checkpoint.donor, rank, checkpoint.nbytes, arrived)

    def finish(self, node: SimNode) -> None:
        """A node's program has returned: whoever still waits at the door may find that all is over."""
        self._over.add(node.rank)
        self._admit_to_what_is_over()

    def _admit_to_what_is_over(self) -> None:
        donors = [rank for rank in sorted(self._over) if self._world.nodes[rank].alive]
        if donors and not self._running() and not self._on_its_way:
            donor: Any = self._world.nodes[donors[0]]
            for rank in sorted(self._at_the_door):
                self._give(rank, LiveCheckpoint.of(donor, over=True))

    def _begin_anew(self) -> None:
        """All were down at once, and enough are back: nobody has anything but the start."""
        self.view = set(self._at_the_door)
        for state in (self._lost, self._needed_from, self._open, self._results):
            state.clear()
        door, self._at_the_door = self._at_the_door, {}
        for task in door.values():
            self._kernel.at(self._kernel.now, self._kernel.resume, task, None)
