"""A worker's side of ``DPSVI``: pushes what its node has learned, and folds what the server says others have."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flockstep.errors import LostPeer, lost_server
from flockstep.lda.nodes.dpsvi_messages import DPSVIMessage, Draft, read, whole, written
from flockstep.lda.nodes.dpsvi_server import HELLO, PUSH, is_behind, is_held
from flockstep.lda.nodes.pending_update import Page, PendingUpdate
from flockstep.lda.nodes.topic_workload import TopicDocuments
from flockstep.message import Message
from flockstep.node import Node, Pending

if TYPE_CHECKING:
    from flockstep.lda.nodes.dpsvi import DPSVI

log = logging.getLogger("flockstep")


@dataclass
class _Push:
    """What a worker tells the server, again and again until there is a reply; coded once."""

    draft: Draft
    message: Message | None = None


_Reply = DPSVIMessage | Literal["lost", "behind"]
"""What the server says to a push, or that it is gone, or that it began anew and knows less than the worker."""


class Worker:
    """One node's dealings with the server."""

    def __init__(self, settings: DPSVI, node: Node, documents: TopicDocuments) -> None:
        self._settings, self._node, self._documents = settings, node, documents
        self._journal = documents.recorder = PendingUpdate(documents.n_words, documents.n_topics)
        self._workers = node.size - (not settings.server_trains)
        self._known = 0
        """Batches the server had folded at its last reply."""
        self._fresh = 0
        """Own batches that are in no push yet."""
        self._number, self._greeted, self._last = HELLO, False, False
        self._unsent = 0
        self._abandoned = False
        """Whether the server is dead, and nobody expects it back."""
        self._alone = self._misses = 0
        """Since the last reply: steps taken, and pushes in vain."""
        self._push: _Push | None = None
        """The one that has no reply yet."""
        self._offered: tuple[Page, int] | None = None
        """What only a table that was offered to the server holds, and how many batches that is."""
        self._pending: Pending[_Reply] | None = None
        documents.learn_number(0, workers=self._workers)

    async def greet(self) -> None:
        """Hear what the others did so far."""
        nothing = Page(self._documents.n_words, self._documents.n_topics, [])
        reply = await self._reply(_Push(self._draft(nothing, number=HELLO)))
        if not isinstance(reply, DPSVIMessage):
            self._miss_the_server()
            return
        self._greeted = True
        self._take(reply)

    async def stepped(self) -> None:
        """A step was taken: push when it is time to, and take in what has come."""
        self._unsent += 1
        self._alone += 1
        self._fresh += self._documents.batches_per_step
        if self._abandoned:
            return
        if self._pending is not None and (self._pending.done or self._unsent >= self._settings.max_steps_in_flight):
            self._merge(await self._pending)
            self._pending = None
        if self._pending is None and self._unsent >= self._settings.period:
            await self._exchange(wait=self._settings.max_steps_in_flight == 0)

    async def end(self) -> None:
        """Without its last push, a worker's last batches would be lost."""
        if self._pending is not None:
            self._merge(await self._pending)
            self._pending = None
        self._last = True
        while (self._fresh or self._push is not None) and not self._abandoned:
            await self._exchange(wait=True)
            if self._misses and self._settings.server not in self._node.peers():
                await self._node.linger()

    async def _exchange(self, *, wait: bool) -> None:
        """Push all that is new, or once more what had no reply."""
        if not self._greeted:
            await self.greet()
        self._unsent = 0
        if not self._greeted:
            return
        if self._push is None:
            self._number += 1
            self._push = _Push(self._draft(self._journal.take(), self._fresh))
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
                push.message = await self._node.aside(lambda: self._written(push.draft))
            reply = await self._node.ask(self._settings.server, PUSH, push.message)
            if is_behind(reply):
                return "behind"
            if not is_held(reply):
                return self._read(reply)
            # A letter may be one that was promised before, and given up.
            while (letter := self._read(await self._node.receive(self._settings.server))).number != push.draft.number:
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
                self._journal.put_before(self._offered[0])
                self._fresh += self._offered[1]
            self._push, self._offered = None, None
            self._alone, self._misses = self._unsent, 0
            self._node.count("exchanges")
            self._take(reply)

    def _take(self, letter: DPSVIMessage) -> None:
        self._documents.fold(letter.update)
        if letter.whole:
            # It has nothing of what is not pushed yet.
            self._documents.fold(self._journal.sum())
        self._known = letter.done
        self._documents.learn_number(self._known + self._workers * self._fresh, workers=self._workers)

    def _offer_the_whole(self) -> None:
        """The server began anew, and knows less: the next push is this worker's table, with all that is in it."""
        if self._push is not None and self._offered is None:
            self._journal.put_before(self._push.draft.page)
            self._fresh += self._push.draft.batches
        self._offered = self._journal.take(), self._fresh
        self._known, self._fresh = self._known + self._fresh, 0
        self._number += 1
        self._push = _Push(self._draft(whole(self._documents.topics), bits=32))

    def _draft(self, page: Page, batches: int = 0, *, number: int | None = None, bits: int | None = None) -> Draft:
        return Draft(
            number=self._number if number is None else number,
            done=self._known,
            batches=batches,
            last=self._last,
            page=page,
            bits=self._settings.bits if bits is None else bits,
            least=self._settings.least * self._documents.weight(page.log_decay, batches),
        )

    def _written(self, draft: Draft) -> Message:
        return written(draft, n_words=self._documents.n_words, rng=self._node.rng)

    def _read(self, message: Message) -> DPSVIMessage:
        return read(message, n_words=self._documents.n_words, n_topics=self._documents.n_topics)

    def _miss_the_server(self) -> None:
        self._node.count("server lost")
        self._misses += 1
        server, patience = self._settings.server, self._settings.patience
        if patience is None:
            if server not in self._node.peers() and not self._abandoned:
                log.warning("node %d: the server, node %d, is dead; it learns on by itself", self._node.rank, server)
                self._abandoned = True
            return
        # Who has no more steps to take still tries as often as it would have in so many.
        if max(self._alone, self._misses * self._settings.period) > patience:
            alive = server in self._node.peers()
            raise lost_server(
                self._node.rank, server, alive=alive, pushes=self._misses, steps=self._alone, patience=patience
            )
