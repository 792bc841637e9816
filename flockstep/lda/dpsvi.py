"""Distributed parallel stochastic variational inference: topics learned by workers that never wait for each other.

Every node has a table of topics n (lambda less its prior) and documents of its own. A batch S of D documents in all is
one update of the form  n <- a n + s,  with a = 1 - rho_t and s = rho_t (D / |S|) times its expected counts; so are many
of them, one after another:

    worker    p threads, B batches, with no lock:    n <- a_i n + s_i;     a <- a_i a,   s <- a_i s + s_i
              pushes the pair (a, s), and folds the reply:   n <- a' n + s'
    server    folds pushes in any order:   n <- a n + s;   replies with the pair (a', s') of what *others* did since its
              last reply to this worker; its own batches are among that

A difference of tables that comes late can make a count negative; a pair cannot, however late it comes. t counts the
batches of all workers, as far as each has heard, so that they follow one schedule. With ``ahead``, a worker goes on
while a push is under way; what it learns meanwhile is in its next push, and nothing is lost or counted twice. Numbers
of 8 or 16 bits are rounded by a coin, right on average, so that there is nothing for a last push to make good.
If the server is gone, workers go on, ``patience`` batches at most; one that was started anew takes the table of the
first worker that has a newer one.

The scheme is DPSGD's: Mohamad, Alamri, Bouchachia, Machine Learning 2022, arXiv 2210.02882; the updates are those of
Hoffman, Blei, Wang, Paisley 2013. Only the abstract of the first was at hand: the program and the pairs are ours.

Sends   one pair to the server, and gets one, per p B batches: rows of words that were touched
Waits   for the server's reply; for nobody with ``ahead``
Keeps   the journal of what is not pushed yet; at the server, for every worker a journal of what the others did
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from flockstep import check
from flockstep.errors import LostPeer
from flockstep.lda.journal import Journal
from flockstep.lda.keeper import HELLO, PUSH, Keeper, is_behind, is_held
from flockstep.lda.letters import Letter, nothing, read, whole, written
from flockstep.lda.topics import Update
from flockstep.lda.wire import WIDTHS
from flockstep.lda.workload import TopicDocuments
from flockstep.message import Message
from flockstep.node import Node, Pending


@dataclass(frozen=True, kw_only=True)
class DPSVI:
    """A server that folds pairs of decay and statistics, workers that learn topics from documents of their own."""

    one_sided: ClassVar[bool] = True

    local_steps: int = 4
    ahead: int = 4
    bits: int = 8
    least: float = 0.1
    """With 8 or 16 bits, less than this part of what one word of a document adds is sent as nothing, or by a coin as so
    much."""
    server: int = 0
    server_trains: bool = True
    patience: int = 1000

    def __post_init__(self) -> None:
        for name in ("local_steps", "patience"):
            check.whole(self, name, getattr(self, name))
        for name in ("ahead", "server"):
            check.whole(self, name, getattr(self, name), at_least=0)
        check.one_of(self, "bits", self.bits, WIDTHS)
        check.not_negative(self, "least", self.least)

    async def run(self, node: Node) -> None:
        """Serve, or learn and push, or both."""
        if self.server >= node.size:
            raise ValueError(f"DPSVI.server must be one of the {node.size} nodes, got {self.server}")
        if not self.server_trains and node.size < 2:
            raise ValueError("DPSVI.server_trains must be True where there is one node only")
        documents = node.workload
        if not isinstance(documents, TopicDocuments):
            raise TypeError(f"DPSVI is for TopicDocuments(...), got {type(documents).__name__}")
        if not self.server_trains and node.rank != self.server:
            documents.deal(node.rank - (node.rank > self.server), node.size - 1)
        documents.work_on(node.params)
        if node.rank == self.server:
            await self._serve(node, documents)
        else:
            await self._learn(node, documents)

    async def _serve(self, node: Node, documents: TopicDocuments) -> None:
        keeper = Keeper(node, documents, bits=self.bits, least=self.least, trains=self.server_trains)
        if not self.server_trains:
            return
        documents.recorder = keeper
        async for _ in node.steps():
            await node.gradient(node.params)
            keeper.stepped(documents.batches_per_step)
        keeper.rest()

    async def _learn(self, node: Node, documents: TopicDocuments) -> None:
        worker = _Worker(self, node, documents)
        await worker.greet()
        async for _ in node.steps():
            await node.gradient(node.params)
            await worker.stepped()
        await worker.end()
        documents.settle()


@dataclass
class _Push:
    """What a worker tells the server, again and again until there is a reply; coded once."""

    letter: Letter
    bits: int
    message: Message | None = None


_Reply = Letter | Literal["lost", "behind"]
"""What the server says to a push, or that it is gone, or that it began anew and knows less than the worker."""


class _Worker:
    """One node's dealings with the server."""

    def __init__(self, settings: DPSVI, node: Node, documents: TopicDocuments) -> None:
        self._settings, self._node, self._documents = settings, node, documents
        self._journal = documents.recorder = Journal(documents.n_words, documents.n_topics)
        self._workers = node.size - (not settings.server_trains)
        self._known = 0
        """Batches the server had folded at its last reply."""
        self._fresh = 0
        """Own batches that are in no push yet."""
        self._number, self._greeted, self._last = HELLO, False, False
        self._unsent = self._alone = 0
        self._push: _Push | None = None
        """The one that has no reply yet."""
        self._offered: tuple[Update, int] | None = None
        """What only a table that was offered to the server holds, and how many batches that is."""
        self._pending: Pending[_Reply] | None = None
        documents.learn_number(0, workers=self._workers)

    async def greet(self) -> None:
        """Hear what the others did so far."""
        hello = Letter(number=HELLO, done=self._known, last=self._last, update=nothing(self._documents.n_topics))
        reply = await self._reply(_Push(hello, self._settings.bits))
        if not isinstance(reply, Letter):
            self._miss_the_server()
            return
        self._greeted = True
        self._take(reply)

    async def stepped(self) -> None:
        """A step was taken: push when it is time to, and take in what has come."""
        self._unsent += 1
        self._fresh += self._documents.batches_per_step
        if self._pending is not None and (self._pending.done or self._unsent >= self._settings.ahead):
            self._merge(await self._pending)
            self._pending = None
        if self._pending is None and self._unsent >= self._settings.local_steps:
            await self._exchange(wait=self._settings.ahead == 0)

    async def end(self) -> None:
        """Without its last push, a worker's last batches would be lost."""
        if self._pending is not None:
            self._merge(await self._pending)
            self._pending = None
        self._last = True
        while self._fresh or self._push is not None:
            await self._exchange(wait=True)

    async def _exchange(self, *, wait: bool) -> None:
        """Push all that is new, or once more what had no reply."""
        if not self._greeted:
            await self.greet()
        self._unsent = 0
        if not self._greeted:
            return
        if self._push is None:
            self._push = self._next_push(self._journal.take(), self._fresh)
            self._fresh = 0
        replying = self._reply(self._push)
        if wait:
            self._merge(await replying)
        else:
            self._pending = self._node.spawn(replying)

    async def _reply(self, push: _Push) -> _Reply:
        """What the server replies to a push. Writing and reading take a while, in the background none of ours."""
        try:
            if push.message is None:
                push.message = await self._node.aside(lambda: self._written(push))
            reply = await self._node.ask(self._settings.server, PUSH, push.message)
            if is_behind(reply):
                return "behind"
            if not is_held(reply):
                return self._read(reply)
            # A letter may be one that was promised before, and given up.
            while (letter := self._read(await self._node.receive(self._settings.server))).number != push.letter.number:
                pass
            return letter
        except LostPeer:
            return "lost"

    def _merge(self, reply: _Reply) -> None:
        if reply == "lost":
            self._miss_the_server()
        elif reply == "behind":
            self._offer_the_whole()
        else:
            if self._offered is not None and reply.whole:
                # Another worker's came first: what was in this one's is to be pushed.
                self._put_before(self._offered[0])
                self._fresh += self._offered[1]
            self._push, self._offered, self._alone = None, None, 0
            self._node.count("exchanges")
            self._take(reply)

    def _take(self, letter: Letter) -> None:
        self._documents.fold(letter.update)
        if letter.whole:
            # It has nothing of what is not pushed yet.
            since = self._journal.take()
            self._documents.fold(since)
            self._journal.record(since)
        self._known = letter.done
        self._documents.learn_number(self._known + self._workers * self._fresh, workers=self._workers)

    def _offer_the_whole(self) -> None:
        """The server began anew, and knows less: the next push is this worker's table, with all that is in it."""
        if self._push is not None and self._offered is None:
            self._put_before(self._push.letter.update)
            self._fresh += self._push.letter.batches
        self._offered = self._journal.take(), self._fresh
        self._known, self._fresh = self._known + self._fresh, 0
        self._push = self._next_push(whole(self._documents.topics), bits=32)

    def _put_before(self, earlier: Update) -> None:
        """Into the journal, before what it has."""
        later = self._journal.take()
        self._journal.record(earlier)
        self._journal.record(later)

    def _next_push(self, update: Update, batches: int = 0, bits: int | None = None) -> _Push:
        self._number += 1
        letter = Letter(number=self._number, done=self._known, batches=batches, last=self._last, update=update)
        return _Push(letter, self._settings.bits if bits is None else bits)

    def _written(self, push: _Push) -> Message:
        letter = push.letter
        return written(
            letter,
            n_words=self._documents.n_words,
            bits=push.bits,
            rng=self._node.rng,
            least=self._settings.least * self._documents.weight(letter.update, letter.batches),
        )

    def _read(self, message: Message) -> Letter:
        return read(message, n_words=self._documents.n_words, n_topics=self._documents.n_topics)

    def _miss_the_server(self) -> None:
        self._node.count("server lost")
        self._alone += self._settings.local_steps
        if self._alone > self._settings.patience:
            raise LostPeer(
                f"node {self._node.rank} has lost the server, node {self._settings.server}, for more than "
                f"{self._settings.patience} batches",
                rank=self._node.rank,
            )
