"""Messages in virtual time: two-sided send and receive, one-sided ask and answer."""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from flockstep.backends.sim.cluster.fault_schedule import MessageLosses
from flockstep.backends.sim.kernel import Kernel, Suspend, Task
from flockstep.backends.sim.wires import Flow, Wires
from flockstep.errors import LostPeer, located
from flockstep.message import Message
from flockstep.node import Handler

if TYPE_CHECKING:
    from flockstep.backends.sim.node import SimNode


class _Question:
    """One ask on its way: there, at the handler, and back."""

    __slots__ = ("__weakref__", "asker", "flow", "lost", "message", "over", "peer", "task", "topic")

    def __init__(self, asker: SimNode, peer: SimNode, topic: str, message: Message, task: Task) -> None:
        self.asker, self.peer, self.topic, self.message, self.task = asker, peer, topic, message, task
        self.flow: Flow | None = None
        self.over = False
        self.lost = ""
        """What of it will not arrive: "question", "reply" or nothing."""


class Mail:
    """All messages of a run."""

    def __init__(
        self, kernel: Kernel, wires: Wires, nodes: list[SimNode], timeout: float, losses: MessageLosses
    ) -> None:
        self._kernel, self._wires, self._nodes, self._timeout = kernel, wires, nodes, timeout
        self._losses = losses
        self._inbox: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self._sent: dict[tuple[int, int], int] = defaultdict(int)
        self._arrived: dict[tuple[int, int], dict[int, Message]] = defaultdict(dict)
        self._taken: dict[tuple[int, int], int] = defaultdict(int)
        self._receivers: dict[tuple[int, int], Task] = {}
        self._handlers: dict[tuple[int, str], Handler] = {}
        self._early: dict[tuple[int, str], list[_Question]] = defaultdict(list)
        self._questions: dict[_Question, None] = {}

    def unread(self, rank: int) -> int:
        """Messages sent to a node that it never received."""
        return sum(self._sent[pair] - self._taken[pair] for pair in list(self._sent) if pair[1] == rank)

    # Two-sided --------------------------------------------------------------------------------------------------

    def send(self, node: SimNode, peer: int, message: Message) -> None:
        """Put a message on the wire."""
        pair = (node.rank, peer)
        number = self._sent[pair]
        self._sent[pair] += 1
        self._move(node, self._nodes[peer], message, lambda: self._arrive(pair, number, message))

    def _arrive(self, pair: tuple[int, int], number: int, message: Message) -> None:
        # A short message may overtake a long one on the wire; a pair's messages are still read in order.
        waiting = self._arrived[pair]
        waiting[number] = message
        while (following := self._taken[pair] + len(self._inbox[pair])) in waiting:
            self._inbox[pair].append(waiting.pop(following))
        if self._inbox[pair] and pair in self._receivers:
            self._hand_over(pair, self._receivers.pop(pair))

    def receive(self, node: SimNode, peer: int) -> Suspend:
        """Wait for the next message of a peer."""
        pair = (peer, node.rank)

        def begin(task: Task) -> None:
            task.mark("waiting")
            task.where = lambda: f"receive from node {peer}"
            if self._inbox[pair]:
                self._hand_over(pair, task)
            elif not self._nodes[peer].alive:
                self._lose(task, peer, "receive")
            else:
                self._receivers[pair] = task

        return Suspend(begin)

    def _hand_over(self, pair: tuple[int, int], task: Task) -> None:
        self._taken[pair] += 1
        self._kernel.at(self._kernel.now, self._kernel.resume, task, self._inbox[pair].popleft())

    # One-sided --------------------------------------------------------------------------------------------------

    def answer(self, node: SimNode, topic: str, handler: Handler) -> None:
        """From now on this handler answers; questions that came early are answered now."""
        self._handlers[node.rank, topic] = handler
        for question in self._early.pop((node.rank, topic), []):
            self._kernel.at(self._kernel.now, self._reach, question)

    def ask(self, node: SimNode, peer: int, topic: str, message: Message) -> Suspend:
        """Send a question and wait for its reply."""

        def begin(task: Task) -> None:
            task.mark("talking")
            task.where = lambda: f"ask({topic!r}) of node {peer}"
            question = _Question(node, self._nodes[peer], topic, message, task)
            if not question.peer.alive:
                self._lose(task, peer, f"ask({topic!r})")
                return
            self._questions[question] = None
            if lost := self._losses.draw(self._kernel.now):
                question.lost = lost
                node.count("exchanges lost")
            question.flow = self._move(node, question.peer, message, lambda: self._reach(question))
            # A name for it only: long after its reply, the event would keep messages and models alive.
            self._kernel.at(self._kernel.now + self._timeout, self._expire, weakref.ref(question))

        return Suspend(begin)

    def _reach(self, question: _Question) -> None:
        if question.over or question.lost == "question":
            return
        handler = self._handlers.get((question.peer.rank, question.topic))
        if handler is None:
            self._early[question.peer.rank, question.topic].append(question)
            return
        try:
            reply = handler(question.asker.rank, question.message).copy()
        except Exception as error:
            raise located(error, question.peer.rank, self._kernel.now) from error
        question.flow = self._move(question.peer, question.asker, reply, lambda: self._reply(question, reply))

    def _reply(self, question: _Question, reply: Message) -> None:
        if not question.over and question.lost != "reply":
            self._close(question)
            self._kernel.resume(question.task, reply)

    def _expire(self, named: weakref.ref[_Question]) -> None:
        question = named()
        if question is not None and not question.over:
            self._close(question)
            self._lose(question.task, question.peer.rank, f"ask({question.topic!r}), no reply in {self._timeout:g} s")

    def _close(self, question: _Question) -> None:
        question.over = True
        self._questions.pop(question, None)
        if question.flow is not None:
            self._wires.cut(question.flow)
            # It leads back to the question: a circle that only the collector would find, some models later.
            question.flow = None

    # ------------------------------------------------------------------------------------------------------------

    def silence(self, rank: int) -> None:
        """A node answers nothing any more, until it says anew what it answers."""
        for key in [key for key in self._handlers if key[0] == rank]:
            del self._handlers[key]

    def lose(self, rank: int) -> None:
        """A node died: whoever talks with it learns so now."""
        for question in [q for q in self._questions if rank in (q.peer.rank, q.asker.rank)]:
            self._close(question)
            self._lose(question.task, question.peer.rank, f"ask({question.topic!r})")
        for pair in [pair for pair in self._receivers if rank in pair]:
            self._lose(self._receivers.pop(pair), rank, "receive")

    def forget(self, rank: int) -> None:
        """A node begins anew: nothing is left of what it was, save messages that others have to read."""
        self.silence(rank)
        for pair in [pair for pair in self._sent if rank in pair]:
            self._arrived.pop(pair, None)
            if pair[1] == rank:
                self._inbox.pop(pair, None)
            # What will not come any more counts as taken, so that the next message is the next one.
            self._taken[pair] = self._sent[pair] - len(self._inbox[pair])

    def _move(self, sender: SimNode, receiver: SimNode, message: Message, done: Callable[[], None]) -> Flow | None:
        sender.sent(receiver.rank, message.nbytes)

        def arrived() -> None:
            # What is under way when its sender or its receiver dies never arrives.
            if sender.alive and receiver.alive:
                receiver.tally.bytes_received += message.nbytes
                done()

        return self._wires.send(sender.rank, receiver.rank, message.nbytes, arrived)

    def _lose(self, task: Task, peer: int, verb: str) -> None:
        error = LostPeer(f"node {task.owner.rank} lost node {peer} in {verb}", rank=task.owner.rank)
        self._kernel.at(self._kernel.now, self._throw, task, error)

    def _throw(self, task: Task, error: LostPeer) -> None:
        self._kernel.resume(task, error=error)
