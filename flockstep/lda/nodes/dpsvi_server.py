"""The server's side of ``DPSVI``: folds what workers push, and tells each of them what the others have learned.

Its own node works in the table that is the result. What comes meanwhile is kept in the order it came until that node is
between two batches; once it has taken its last, or where it takes none, pushes are folded as they come. For every
worker there is a journal of what all others did since its last reply. A reply is kept until the worker's next push, so
that one whose reply was lost is folded once and answered twice.

A worker that begins anew, or that the server knows nothing of, gets the whole table, in a letter of its own when the
table stands still. A server that knows of fewer batches than a worker has begun anew itself, and asks for the worker's.
"""

from __future__ import annotations

import threading

from flockstep.lda.core.topics import Update
from flockstep.lda.nodes.dpsvi_messages import DPSVIMessage, Draft, read, whole, written
from flockstep.lda.nodes.pending_update import Page, PendingUpdate
from flockstep.lda.nodes.topic_workload import TopicDocuments
from flockstep.message import Message
from flockstep.node import Node
from flockstep.parts.push_protocol import BEHIND, HELD, HELLO

PUSH = "topics push"


class DPSVIServer:
    """Journals for workers, and what waits for the server's own node."""

    def __init__(self, node: Node, documents: TopicDocuments, *, bits: int, least: float, trains: bool) -> None:
        self._node, self._documents, self._bits, self._least = node, documents, bits, least
        self._size = documents.n_words, documents.n_topics
        self.done = 0
        """Batches of all workers so far."""
        self._journals = {rank: PendingUpdate(*self._size) for rank in range(node.size) if rank != node.rank}
        self._batches = dict.fromkeys(self._journals, 0)
        """How many are in each journal."""
        self._greeted: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._replies: dict[int, Message] = {}
        self._waiting: list[Update] = []
        self._owed: set[int] = set()
        """Who is to get the whole table."""
        self._resting = not trains
        # Of its own: nobody is to wait while a handler reads or writes a letter.
        self._turn = threading.Lock()
        node.answer(PUSH, self._answer)

    # The server's own node ----------------------------------------------------------------------------------------

    def record(self, update: Update) -> None:
        """A batch of the server's own: told to all workers."""
        for journal in list(self._journals.values()):
            journal.record(update)

    def stepped(self, batches: int) -> None:
        """Between two batches: fold what has come."""
        with self._turn:
            self._count(batches)
            self._fold_waiting()
            done = self.done
        self._documents.learn_number(done, workers=1 + len(self._node.peers()))

    def rest(self) -> None:
        """The server's node has taken its last batch: from now on its vector shows the table as pushes come."""
        with self._turn:
            self._resting = True
            self._fold_waiting()
            self._documents.settle()

    # Handlers -----------------------------------------------------------------------------------------------------

    def _answer(self, peer: int, message: Message) -> Message:
        push = read(message, n_words=self._size[0], n_topics=self._size[1])
        with self._turn:
            reply = self._reply(peer, push)
        if isinstance(reply, Draft):
            reply = self._replies[peer] = self._written(reply)
        return reply

    def _reply(self, peer: int, push: DPSVIMessage) -> Message | Draft:
        if push.number == HELLO:
            self._greet(peer)
        elif push.number > self._numbers.get(peer, HELLO):
            if push.done > self.done and not push.whole:
                return BEHIND
            if peer not in self._greeted:
                # Known to the server that was here before: what that one had told it, nobody knows.
                self._greet(peer)
                self._journals.pop(peer, None)
            self._take(peer, push)
        elif peer in self._replies:
            return self._replies[peer]
        if push.last:
            self._journals.pop(peer, None)
            return self._draft(peer, Page(*self._size, []))
        if peer in self._journals:
            return self._draft(peer, self._journals[peer].take())
        if self._resting:
            return self._whole(peer)
        self._owed.add(peer)
        return HELD

    def _greet(self, peer: int) -> None:
        """A worker begins: at first its journal has all that it does not know."""
        if peer in self._greeted:
            self._journals.pop(peer, None)
        self._greeted.add(peer)
        self._owed.discard(peer)
        self._replies.pop(peer, None)
        self._numbers[peer] = HELLO

    def _take(self, peer: int, push: DPSVIMessage) -> None:
        self._numbers[peer] = push.number
        self._owed.discard(peer)
        self._replies.pop(peer, None)
        if push.whole:
            self._restore(peer, push)
            return
        for rank in self._journals.keys() - {peer, *self._node.peers()}:
            # Gone; if it comes back, it gets the whole.
            del self._journals[rank]
        for rank, journal in self._journals.items():
            if rank != peer:
                journal.record(push.update)
        self._count(push.batches, but=peer)
        self._node.count("pushes")
        self._fold(push.update)

    def _count(self, batches: int, but: int | None = None) -> None:
        self.done += batches
        for rank in self._journals:
            self._batches[rank] = self._batches.get(rank, 0) + batches * (rank != but)

    def _restore(self, peer: int, push: DPSVIMessage) -> None:
        """Take a worker's table over, unless another one's came first."""
        self._journals.pop(peer, None)
        if push.done <= self.done:
            return
        self._node.count("server restored")
        self._journals = {peer: PendingUpdate(*self._size)}
        self.done = push.done
        self._waiting.clear()
        self._fold(push.update)

    def _fold(self, update: Update) -> None:
        if self._resting:
            self._documents.fold(update)
            self._documents.settle()
        else:
            self._waiting.append(update)

    def _fold_waiting(self) -> None:
        for update in self._waiting:
            self._documents.fold(update)
        self._waiting.clear()
        for peer in self._owed:
            self._replies[peer] = self._written(self._whole(peer))
            self._node.send(peer, self._replies[peer])
        self._owed.clear()

    # ----------------------------------------------------------------------------------------------------------------

    def _whole(self, peer: int) -> Draft:
        self._journals[peer] = PendingUpdate(*self._size)
        return self._draft(peer, whole(self._documents.topics), bits=32)

    def _draft(self, peer: int, page: Page, bits: int | None = None) -> Draft:
        batches, self._batches[peer] = self._batches.get(peer, 0), 0
        return Draft(
            number=self._numbers.get(peer, HELLO),
            done=self.done,
            batches=batches,
            page=page,
            bits=self._bits if bits is None else bits,
            least=self._least * self._documents.weight(page.log_decay, batches),
        )

    def _written(self, draft: Draft) -> Message:
        return written(draft, n_words=self._size[0], rng=self._node.rng)
