"""A worker's side of ``DPSVI``: pushes what its node has learned, and folds what the server says others have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flockstep.errors import LostPeer
from flockstep.lda.nodes.dpsvi_messages import DPSVIMessage, Draft, read, whole, written
from flockstep.lda.nodes.dpsvi_server import PUSH
from flockstep.lda.nodes.pending_update import Page, PendingUpdate
from flockstep.lda.nodes.topic_workload import TopicDocuments
from flockstep.message import Message
from flockstep.node import Node
from flockstep.parts.push_protocol import HELLO, Pusher, is_behind, is_held

if TYPE_CHECKING:
    from flockstep.lda.nodes.dpsvi import DPSVI


@dataclass
class _Push:
    """What a worker tells the server, again and again until there is a reply; coded once."""

    steps: int
    draft: Draft
    message: Message | None = None


class Worker(Pusher[_Push, DPSVIMessage]):
    """One node's dealings with the server."""

    def __init__(self, settings: DPSVI, node: Node, documents: TopicDocuments) -> None:
        ahead, patience = settings.max_steps_in_flight, settings.patience
        super().__init__(node, settings.server, due=settings.period, max_steps_in_flight=ahead, patience=patience)
        self._settings, self._documents = settings, documents
        self._journal = documents.recorder = PendingUpdate(documents.n_words, documents.n_topics)
        self._workers = node.size - (not settings.server_trains)
        self._known = 0
        """Batches the server had folded at its last reply."""
        self._last = False
        self._offered: tuple[Page, int] | None = None
        """What only a table that was offered to the server holds, and how many steps that is."""
        documents.learn_number(0, workers=self._workers)

    @property
    def _fresh(self) -> int:
        """Own batches that are in no push yet: one for each thread and step."""
        return self._unsent * self._documents.batches_per_step

    async def end(self) -> None:
        """Push what is left, as the last."""
        await self._land()
        self._last = True
        await super().end()

    def _new_push(self, steps: int) -> _Push:
        return _Push(steps, self._draft(self._journal.take(), steps))

    async def _reply(self, push: _Push | None) -> DPSVIMessage | Literal["behind"] | None:
        """Writing and reading take a while, in the background none of ours."""
        push = push or _Push(0, self._draft(Page(self._documents.n_words, self._documents.n_topics, []), number=HELLO))
        try:
            if push.message is None:
                push.message = await self._node.aside(lambda: self._written(push.draft))
            reply = await self._node.ask(self._server, PUSH, push.message)
            if is_behind(reply):
                return "behind"
            if not is_held(reply):
                return self._read(reply)
            # A letter may be one that was promised before, and given up.
            while (letter := self._read(await self._node.receive(self._server))).number != push.draft.number:
                pass
            return letter
        except LostPeer:
            return None

    def _take(self, reply: DPSVIMessage, push: _Push | None) -> None:
        if self._offered is not None and reply.whole:
            # Another worker's came first: what was in this one's is to be pushed.
            self._journal.put_before(self._offered[0])
            self._unsent += self._offered[1]
        self._offered = None
        self._documents.fold(reply.update)
        if reply.whole:
            # It has nothing of what is not pushed yet.
            self._documents.fold(self._journal.sum())
        self._known = reply.done
        self._documents.learn_number(self._known + self._workers * self._fresh, workers=self._workers)

    def _restore(self) -> None:
        """The server began anew, and knows less: the next push is this worker's table, with all that is in it."""
        if self._push is not None and self._offered is None:
            self._journal.put_before(self._push.draft.page)
            self._unsent += self._push.steps
        self._offered = self._journal.take(), self._unsent
        self._known += self._fresh
        self._unsent = 0
        self._number += 1
        self._push = _Push(0, self._draft(whole(self._documents.topics), bits=32))

    def _draft(self, page: Page, steps: int = 0, *, number: int | None = None, bits: int | None = None) -> Draft:
        batches = steps * self._documents.batches_per_step
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
