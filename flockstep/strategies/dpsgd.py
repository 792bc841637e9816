"""Distributed parallel SGD: asynchronous between machines, lock-free between the cores of each.

(Not differentially private SGD, and not decentralised parallel SGD, which is ``Gossip`` here.)

    server    folds any M pushes, in any order:   v <- v + server_lr * sum_m change_m;     replies v; 1 / n of n workers
    worker    u <- v; p threads, B steps each, with no lock:   u <- u - eta g(u)           coordinates may be of any age
              pushes the change u - v with the version it had read: one message per p B steps

A worker waits for the server, never for another worker, and with ``max_steps_in_flight`` not even for the server: it
may take so many steps while a push is under way, and none of them is lost,   x <- x + fresh - given - pushed.
What a codec leaves out of a push stays in x, and so goes into the next one: error feedback without a residual. The
last one is exact.
If the server is gone, workers step on their own, ``patience`` steps at most; when it is back, it takes over the model
of a worker that has read a newer one than it has itself.

Mohamad, Alamri, Bouchachia: scaling up stochastic gradient descent, Machine Learning 2022, arXiv 2210.02882, which has
O(1/sqrt T) for p <= T^1/4 and W <= T^1/2; beyond that, a warning. p = B = 1 is AsySG (Lian et al. 2015), one worker is
Hogwild. Only the abstract was at hand: the program above is ours.

Sends   one coded change to the server, and gets one model, per p B steps
Waits   for the server's reply, unless ``max_steps_in_flight``; with ``pushes_per_update``, for M pushes; with
        ``max_staleness``, for the slowest, when so many pushes ahead of it
Keeps   the model as it was read, and its version; at the server the model and its version
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

from flockstep import check
from flockstep.codecs.codec import Codec
from flockstep.codecs.raw import Raw
from flockstep.node import Node
from flockstep.parts.push_server import Server
from flockstep.parts.push_worker import Worker
from flockstep.parts.suitability import CHANGES, codec_for


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """Distributed parallel SGD: workers push changes to a server, wait for no other worker, and share a model unlocked.

        worker:   u <- v;   every thread, ``period`` times, without a lock:   u <- u - eta * g(u);   push u - v
        server:   v <- v + server_lr * sum_m change_m      of ``pushes_per_update`` pushes, in any order;   reply v

    It is neither differentially private SGD nor decentralised parallel SGD (``Gossip``). Nodes may die, come back and
    come late; so may the server. The server's model has the last pushes of all nodes.

    Mohamad, Alamri, Bouchachia: scaling up stochastic gradient descent, Machine Learning 2022, arXiv 2210.02882. Only
    the abstract was at hand: the program is ours.

    Args:
        threads: Lock-free threads of every worker that step on one model; processes on shared memory where steps hold
            Python's lock. In a loop of your own 1.
        period: Steps that a node takes between two exchanges. With several ``threads``, steps of each of them.
        pushes_per_update: Pushes that the server waits for before it adds them to the model.
        server_lr: What the server adds of a push. None: 1 / n for n living workers, so that n workers' steps go as far
            as one's. 1 is the paper's sum, which goes n times as far.
        max_steps_in_flight: Steps that a worker may take while a push is under way; 0: it waits for the reply.
        max_staleness: Pushes that a worker may be ahead of the slowest before the server holds its reply back. None:
            any number.
        damping: A push that is s updates of the server old counts (1 + s)^-damping; 0: all count the same.
        codec: How vectors become bytes (see ``fs.codecs``). By default in full. It carries pushes, which are changes:
            not ``Modular``. Replies, and a worker's last push, go in full.
        server: Rank of the node that keeps the model.
        server_trains: Whether the server's node takes steps, too. In a loop of your own True.
        patience: Steps that a worker takes without a reply before it ends with ``LostPeer``. One that has no steps left
            tries its last push as often as it would have in so many, for a minute where the server is dead.

    Example:
        with fs.join(model, optimizer, fs.DPSGD(period=8, max_steps_in_flight=8)):
            train(model, optimizer)  # your own loop
    """

    one_sided: ClassVar[bool] = True
    own_gradients: ClassVar[bool] = True

    threads: int = 1
    period: int = 1
    pushes_per_update: int = 1
    server_lr: float | None = None
    max_steps_in_flight: int = 0
    max_staleness: int | None = None
    damping: float = 0.0
    codec: Codec = Raw()
    server: int = 0
    server_trains: bool = True
    patience: int = 1000

    def __post_init__(self) -> None:
        for name in ("threads", "period", "pushes_per_update", "patience"):
            check.whole(self, name, getattr(self, name))
        for name in ("max_steps_in_flight", "server"):
            check.whole(self, name, getattr(self, name), at_least=0)
        if self.server_lr is not None:
            check.positive(self, "server_lr", self.server_lr)
        check.not_negative(self, "damping", self.damping)
        if self.max_staleness is not None:
            check.whole(self, "max_staleness", self.max_staleness, at_least=0)
        codec_for(self, self.codec, CHANGES, such_as="TopK(fraction=0.01)", instead="Stochastic(bits=8) or TopK()")

    async def run(self, node: Node) -> None:
        """Serve, or train and push, or both."""
        server = self._open(node)
        if server is not None and not self.server_trains:
            return
        worker = self._start_worker(node, server)
        await worker.greet()
        if self.threads == 1:
            async for _ in node.steps():
                await node.step(await node.gradient(node.params))
                await worker.stepped(1)
        else:
            while steps := await node.work(self.threads, self.period):
                await worker.stepped(steps)
        await worker.end()

    def _open(self, node: Node) -> Server | None:
        """The server, on the node that has it."""
        if self.server >= node.size:
            raise ValueError(f"DPSGD.server must be one of the {node.size} nodes, got {self.server}")
        if node.own_loop and not self.server_trains:
            raise ValueError("DPSGD.server_trains must be True in a loop of your own: there every node takes steps")
        if node.rank != self.server:
            return None
        self._warn_beyond_the_theory(node)
        return Server(
            node,
            node.keep("server model", node.params.clone()) if self.server_trains else node.params,
            self.codec,
            pushes_per_update=self.pushes_per_update,
            rate=self.server_lr,
            damping=self.damping,
            most_ahead=self.max_staleness,
            trains=self.server_trains,
        )

    def _start_worker(self, node: Node, server: Server | None) -> Worker:
        return Worker(
            node,
            self.server,
            server,
            self.codec,
            due=self.threads * self.period,
            max_steps_in_flight=self.max_steps_in_flight,
            patience=self.patience,
        )

    def _warn_beyond_the_theory(self, node: Node) -> None:
        workers = node.size - (not self.server_trains)
        if node.planned is None:
            return
        total = node.planned * workers
        cores, machines = int(total**0.25), int(total**0.5)
        if self.threads > cores or workers > machines:
            warnings.warn(
                f"DPSGD's analysis covers at most {cores} threads and {machines} workers for {total} steps in all; "
                f"here are {self.threads} and {workers}",
                stacklevel=2,
            )
