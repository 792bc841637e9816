"""Collectives in virtual time: the k-th of one node on a channel meets the k-th of every other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flockstep.backends.sim.kernel import Kernel, Suspend, Task
from flockstep.backends.sim.wires import Flow, Wires
from flockstep.errors import LostPeer, Mismatch, nodes_named
from flockstep.message import Message, ring_bytes
from flockstep.node import mean_of

if TYPE_CHECKING:
    from flockstep.backends.sim.node import SimNode


class Meeting:
    """One round of one channel: who has come, with what."""

    def __init__(self, verb: str, channel: str, round: int, begin: Callable[[Meeting], None]) -> None:
        self.verb, self.channel, self.round, self.begin = verb, channel, round, begin
        self.brought: dict[int, Any] = {}
        self.tasks: dict[int, Task] = {}
        self.flow: Flow | None = None
        # Of elastic rounds only.
        self.ranks: tuple[int, ...] = ()
        """Among whom it is under way."""
        self.attempt = 0
        self.listeners: dict[int, Task] = {}
        """Who only hears what comes of it."""

    def __str__(self) -> str:
        return f"{self.verb}({self.channel!r}), round {self.round}"


class Collectives:
    """All collectives of a run."""

    def __init__(self, kernel: Kernel, wires: Wires, size: int) -> None:
        self._kernel, self._wires, self._size = kernel, wires, size
        self._open: dict[tuple[str, int], Meeting] = {}
        self._dead: list[int] = []

    def mean(self, node: SimNode, v: Tensor, channel: str) -> Suspend:
        """Wait for everybody's vector; get the mean."""
        return self._join("mean", node, v, channel, self._begin_mean)

    def exchange(self, node: SimNode, messages: Sequence[Message], channel: str) -> Suspend:
        """Wait for everybody's messages; get one from each."""
        return self._join("exchange", node, messages, channel, self._begin_exchange)

    def lose(self, rank: int) -> None:
        """A node died: whoever waits for it learns so now."""
        if rank not in self._dead:
            self._dead.append(rank)
        for meeting in list(self._open.values()):
            if meeting.flow is not None:
                self._wires.cut(meeting.flow)
            self._break(meeting)

    def _join(self, verb: str, node: SimNode, thing: Any, channel: str, begin: Callable[[Meeting], None]) -> Suspend:
        round = node.channels.next_round(channel)

        def arrive(task: Task) -> None:
            meeting = self._open.setdefault((channel, round), Meeting(verb, channel, round, begin))
            meeting.tasks[node.rank] = task
            task.mark("waiting")
            task.where = lambda: self._where(meeting)
            if meeting.verb != verb:
                raise Mismatch(
                    f"node {node.rank} is in {verb} where others are in {meeting}", channel=channel, round=round
                )
            self._bring(meeting, node, thing)

        return Suspend(arrive)

    def _where(self, meeting: Meeting) -> str:
        """What a node that has come to a round waits in."""
        return str(meeting)

    def _bring(self, meeting: Meeting, node: SimNode, thing: Any) -> None:
        """A node has come to a round: it may be complete now."""
        meeting.brought[node.rank] = thing
        if self._dead:
            self._break(meeting)
        elif len(meeting.brought) == self._size:
            self._begin(meeting)

    def _begin(self, meeting: Meeting) -> None:
        for task in meeting.tasks.values():
            task.mark("talking")
        meeting.begin(meeting)

    def _break(self, meeting: Meeting) -> None:
        self._open.pop((meeting.channel, meeting.round), None)
        for rank, task in meeting.tasks.items():
            lost = nodes_named(self._dead) if self._dead != [rank] else "its own first incarnation"
            error = LostPeer(
                f"node {rank} was in {meeting} when it lost {lost}",
                rank=rank,
                channel=meeting.channel,
                round=meeting.round,
            )
            self._kernel.at(self._kernel.now, self._throw, task, error)

    def _throw(self, task: Task, error: LostPeer) -> None:
        self._kernel.resume(task, error=error)

    def _begin_mean(self, meeting: Meeting) -> None:
        # In rank order, whoever came first: the hardware model must not change the numbers.
        vectors = [meeting.brought[rank] for rank in range(self._size)]
        total = self._mean_of(meeting, vectors)
        nbytes = ring_bytes(total.nbytes, self._size)
        for rank, node in self._present(meeting):
            node.sent((rank + 1) % self._size, nbytes)
            node.tally.bytes_received += nbytes

        def done() -> None:
            # What a node brought is a copy of its own: filling it costs less than a new one for each.
            for vector in vectors[1:]:
                vector.copy_(total)
            self._deliver(meeting, vectors)

        meeting.flow = self._wires.ring(nbytes, 2 * (self._size - 1), done)

    def _mean_of(self, meeting: Meeting, vectors: list[Tensor]) -> Tensor:
        try:
            return mean_of(vectors, meeting.channel, meeting.round)
        except Mismatch as error:
            error.time = self._kernel.now
            raise

    def _begin_exchange(self, meeting: Meeting) -> None:
        table: list[Sequence[Message]] = [meeting.brought[rank] for rank in range(self._size)]
        sent = [sum(m.nbytes for to, m in enumerate(row) if to != rank) for rank, row in enumerate(table)]
        received = [sum(row[rank].nbytes for by, row in enumerate(table) if by != rank) for rank in range(self._size)]
        for rank, node in self._present(meeting):
            node.tally.bytes_sent += sent[rank]
            node.tally.bytes_received += received[rank]
            if node.timeline is not None:
                for to, message in enumerate(table[rank]):
                    if to != rank:
                        node.timeline.send(rank, to, message.nbytes)

        def done() -> None:
            self._deliver(meeting, [[row[rank] for row in table] for rank in range(self._size)])

        meeting.flow = self._wires.all_to_all(max(*sent, *received), done)

    def _present(self, meeting: Meeting) -> Iterator[tuple[int, SimNode]]:
        for rank, task in meeting.tasks.items():
            yield rank, task.owner  # type: ignore[misc]

    def _deliver(self, meeting: Meeting, results: Sequence[Any] | Mapping[int, Any]) -> None:
        del self._open[meeting.channel, meeting.round]
        for rank, task in meeting.tasks.items():
            self._kernel.at(self._kernel.now, self._kernel.resume, task, results[rank])
        # Meeting and flow know each other: without this, every round's vectors would wait for the garbage collector.
        meeting.brought, meeting.flow = {}, None
