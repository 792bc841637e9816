"""Distributed parallel stochastic variational inference: topics learned by workers that never wait for each other.

Every node has a table of topics n (lambda less its prior) and documents of its own. A batch S of D documents in all is
one update of the form  n <- a n + s,  with a = 1 - rho_t and s = rho_t (D / |S|) times its expected counts; so are many
of them, one after another:

    worker    p threads, B batches, with no lock:    n <- a_i n + s_i;     a <- a_i a,   s <- a_i s + s_i
              pushes the pair (a, s), and folds the reply:   n <- a' n + s'
    server    folds pushes in any order:   n <- a n + s;   replies with the pair (a', s') of what *others* did since its
              last reply to this worker; its own batches are among that

A difference of tables that comes late can make a count negative; a pair cannot, however late it comes. t counts the
batches of all workers, as far as each has heard, so that they follow one schedule. With ``max_steps_in_flight``, a
worker goes on while a push is under way; what it learns meanwhile is in its next push, and nothing is lost or counted
twice. Numbers of 8 or 16 bits are rounded by a coin, right on average: there is nothing for a last push to make good.
If the server is gone, workers go on, ``patience`` steps at most; one that was started anew takes the table of the
first worker that has a newer one. With no patience at all (None) a dead server is not waited for: each worker learns on
by itself, and what they have at the end is theirs to put together.

The scheme is DPSGD's: Mohamad, Alamri, Bouchachia, Machine Learning 2022, arXiv 2210.02882; the updates are those of
Hoffman, Blei, Wang, Paisley 2013. Only the abstract of the first was at hand: the program and the pairs are ours.

Sends   one pair to the server, and gets one, per p B batches: rows of words that were touched
Waits   for the server's reply; for nobody with ``max_steps_in_flight``
Keeps   the journal of what is not pushed yet; at the server, for every worker a journal of what the others did
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flockstep import check
from flockstep.lda.nodes.dpsvi_server import DPSVIServer
from flockstep.lda.nodes.dpsvi_worker import Worker
from flockstep.lda.nodes.topic_workload import TopicDocuments
from flockstep.lda.nodes.update_codec import WIDTHS
from flockstep.node import Node


@dataclass(frozen=True, kw_only=True)
class DPSVI:
    """Distributed parallel stochastic variational inference: workers learn topics and wait for no other worker.

        worker:   n <- a_i n + s_i  for each batch;   pushes the pair of all of them:   a <- a_i a,   s <- a_i s + s_i
        server:   n <- a n + s  for each push;   replies with the pair of what others did since its last reply

    n is a table of words by topics without its prior, a_i = 1 - rho_t, s_i = rho_t (D / |S|) times the expected counts
    of a batch S of D documents. For ``TopicDocuments``; ``fit_on_nodes`` runs it for you. Nodes may die, come back and
    come late; so may the server.

    Mohamad, Alamri, Bouchachia, Machine Learning 2022, arXiv 2210.02882; Hoffman, Blei, Wang, Paisley: stochastic
    variational inference, JMLR 2013. Only the abstract of the first was at hand: the program and the pairs are ours.

    Args:
        period: Steps that a node takes between two exchanges. A step is one batch for each of its threads.
        max_steps_in_flight: Steps that a worker may take while a push is under way; 0: it waits for the reply.
        bits: Bits per number of a message: 8, 16 or 32. 32 is exact; 8 and 16 are rounded by a coin, right on average.
        least: With 8 or 16 bits, the smallest number that is sent, as a share of what one word of a document adds on
            average; smaller ones become 0 or this by a coin, right on average.
        server: Rank of the node that keeps the table.
        server_trains: Whether the server's node takes steps, too.
        patience: Steps that a worker takes without a reply before it ends with ``LostPeer``. None: a dead server is not
            waited for, and each worker learns on by itself.

    Example:
        if __name__ == "__main__":
            trace = fs.launch(DPSVI(), TopicDocuments(counts, model=LDA(20)), nodes=2, steps=100)
    """

    one_sided: ClassVar[bool] = True

    period: int = 4
    max_steps_in_flight: int = 4
    bits: int = 8
    least: float = 0.1
    server: int = 0
    server_trains: bool = True
    patience: int | None = 1000

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        if self.patience is not None:
            check.whole(self, "patience", self.patience)
        for name in ("max_steps_in_flight", "server"):
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
        keeper = DPSVIServer(node, documents, bits=self.bits, least=self.least, trains=self.server_trains)
        if not self.server_trains:
            return
        documents.recorder = keeper
        async for _ in node.steps():
            await node.gradient(node.params)
            keeper.stepped(documents.batches_per_step)
        keeper.rest()

    async def _learn(self, node: Node, documents: TopicDocuments) -> None:
        worker = Worker(self, node, documents)
        await worker.greet()
        async for _ in node.steps():
            await node.gradient(node.params)
            await worker.stepped()
        await worker.end()
        documents.settle()
