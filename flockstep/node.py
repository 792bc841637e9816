"""A node: what a strategy can do, in few verbs. Every backend keeps the same contract.

 1. Time passes only at ``await``.
 2. Messages are copied when sent; what a verb returns is yours.
 3. Handlers are plain functions; two handlers of one node never run at once; the node itself does not stop for them.
    What both change, the node changes inside ``with node.undisturbed()``.
 4. Asking a topic without a handler yet waits (to a deadline); asking a dead peer raises LostPeer.
 5. A node goes on answering after its ``run`` returned, until all have. Nodes leave together.
 6. An exception in any task ends the run and carries rank and time. Nothing is caught and stepped over.
 7. Separate random streams per node for data, codec and clock: the hardware must not change the numbers.
 8. No ``await`` inside a torch context manager such as ``no_grad``: it would leak into other virtual nodes.
 9. What is registered with ``keep`` survives a checkpoint.

Collectives (``mean``, ``exchange``) meet by channel: the k-th of one node on a channel meets the k-th of every other.
A channel carries one shape and dtype for the whole run. Vectors never require grad, so a strategy needs no ``no_grad``.

In an elastic run the k-th of a channel is carried out by the view, the nodes that are there when it ends: all of them
get its result, or none does. A node that comes while one is under way at its donor brings nothing to that one and hears
what came of it; if none of those whose it was is left, it is that of the nodes which came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.errors import Mismatch, unlike
from flockstep.message import Message
from flockstep.vector import norm

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Handler = Callable[[int, Message], Message]
"""``handler(peer, message) -> reply``: runs on the answering node, on behalf of ``peer``."""

OptimizerFactory = Callable[[list[Tensor]], torch.optim.Optimizer]
"""How to make a node's optimizer, e.g. ``functools.partial(torch.optim.SGD, lr=0.1)``."""


class Pending(Protocol[T_co]):
    """Work in the background, as ``node.spawn`` gives it: look with ``done``, wait with ``await``.

    Example:
        pending = node.spawn(node.mean(node.params.clone()))
    """

    @property
    def done(self) -> bool:
        """Whether it has finished, well or badly."""
        ...

    def __await__(self) -> Generator[Any, Any, T_co]: ...


class Node(ABC):
    """One member of the flock, as its strategy sees it; every backend has its own.

    Time passes only at ``await``. Messages are copied when they are sent, and what a verb returns is the caller's.
    Inside a torch context manager such as ``no_grad`` nothing may be awaited.

    Attributes:
        rank: This node's number, from 0.
        size: How many nodes there are.
        incarnation: 0 in a node's first life, and more in each that comes after.
        params: The model: one flat vector, updated in place.
        optimizer: The torch optimizer that ``step`` runs.
        rng: Random numbers for the strategy and its codecs; the data has a stream of its own.
        step_count: Steps begun so far, skipped ones included.
        planned: How many steps it was asked for in all. None: unknown.
        elastic: Whether nodes may die and come in a run whose nodes take means.
        own_loop: Whether gradients and steps are those of a loop of the user's own.
        workload: This node's part of the workload it trains on, for a strategy that has to know more of it than its
            gradients. None in a loop of the user's own.
        kept: What ``keep`` registered, by name.
        kept_before: What a resumed run had kept, until ``keep`` takes it up.
        own: Names of what ``keep`` registered as this node's own.
        view: Ranks of the nodes that took part in the last mean or exchange: all nodes, unless the run is elastic.
        column: In an island, which of its members this process is: ``params`` is its part of the model. 0 elsewhere.
        refused: Whether the last gradient was not finite: it came as zeros, and a step with nothing but them is
            skipped.

    Example:
        async def run(self, node: fs.Node) -> None:
            async for _ in node.steps():
                await node.step(await node.mean(await node.gradient(node.params), "gradient"))
    """

    rank: int
    size: int
    incarnation: int = 0
    params: Tensor
    optimizer: torch.optim.Optimizer
    rng: np.random.Generator
    step_count: int
    planned: int | None = None
    elastic = False
    """Whether nodes may die and come in a run whose nodes take means."""
    own_loop = False
    """Whether gradients and steps are those of a loop of the user's own."""
    column = 0
    """In an island, which of its members this process is: ``params`` is its part of the model."""
    workload: Any = None
    kept: dict[str, Tensor]
    kept_before: dict[str, Tensor]
    own: frozenset[str] = frozenset()
    """Names of what ``keep`` registered as this node's own."""
    refused = False
    """Whether the last gradient was not finite: it came as zeros, and a step with nothing but them is skipped."""

    @property
    def view(self) -> tuple[int, ...]:
        """Ranks of the nodes that took part in the last mean or exchange: all nodes, unless the run is elastic."""
        return self._view or tuple(range(self.size))

    @view.setter
    def view(self, ranks: tuple[int, ...]) -> None:
        self._view = ranks

    _view: tuple[int, ...] = ()

    @abstractmethod
    def steps(self) -> AsyncIterator[int]:
        """The steps of this run: ``async for k in node.steps()``; k counts from 0, or from where a resumed run was."""

    def rounds(self, period: int) -> AsyncIterator[Round]:
        """The same steps, ``period`` at a time: ``async for round in node.rounds(period)``, and in it
        ``async for _ in round``. The last may be shorter; a resumed run goes on in the middle of the one it was in."""
        return _Rounds(self, check.whole("node.rounds", "period", period))

    @abstractmethod
    async def gradient(self, x: Tensor) -> Tensor:
        """A stochastic gradient of this node's own loss at ``x``. Takes compute time.

        The vector is yours, to change in place too, until ``step`` is given it. It is always finite: see ``refused``.
        """

    @abstractmethod
    async def step(self, g: Tensor | None) -> None:
        """The local update: the torch optimizer's step on ``params`` with gradient ``g``; None is a counted skip."""

    async def work(self, threads: int, steps: int) -> int:
        """Let a crew of ``threads`` take ``steps`` steps each on ``params``, with no lock; how many it took in all.

        Fewer where the run ends, and 0 when it has.
        """
        raise NotImplementedError("a loop of your own is one thread: threads=1, or train a workload with a crew")

    @abstractmethod
    async def mean(self, v: Tensor, channel: str = "model") -> Tensor:
        """The mean of every node's ``v``, in an elastic run of every node's in the view. Waits for all."""

    @abstractmethod
    async def exchange(self, messages: Sequence[Message], channel: str = "exchange") -> list[Message]:
        """Give ``messages[j]`` to node j, for all j at once, and get what each node gave to this one.

        In an elastic run these are the nodes that are in ``view`` afterwards: of all others the message is ``NOTHING``,
        and what was for them goes nowhere. A node that came while the exchange was under way hears what was given to
        one of those who took part, itself not among them; in its own place may be what it gave in an earlier life.
        """

    @abstractmethod
    def answer(self, topic: str, handler: Handler) -> None:
        """From now on, let ``handler`` answer what peers ask under ``topic``; one it replaces runs no more, but for
        a call that has begun, which ``undisturbed`` waits for."""

    def undisturbed(self) -> AbstractContextManager[object]:
        """``with node.undisturbed():`` no handler of this node runs inside. Keep it short, and await nothing in it."""
        return nullcontext()

    @abstractmethod
    async def ask(self, peer: int, topic: str, message: Message) -> Message:
        """What ``peer``'s handler for ``topic`` replies. The peer is not interrupted."""

    @abstractmethod
    def send(self, peer: int, message: Message) -> None:
        """Send without waiting; the peer takes it with ``receive``."""

    @abstractmethod
    async def receive(self, peer: int) -> Message:
        """The next message ``peer`` sent to this node, in the order they were sent."""

    @abstractmethod
    def spawn(self, coroutine: Coroutine[Any, Any, T_co]) -> Pending[T_co]:
        """Run a coroutine in the background. It runs up to its first wait before ``spawn`` returns."""

    async def aside(self, call: Callable[[], T]) -> T:
        """What ``call`` gives. In a coroutine that was spawned it keeps the node's own task from nothing meanwhile, so
        it must not touch what that one changes; on virtual nodes it takes no time."""
        return call()

    @abstractmethod
    async def linger(self) -> None:
        """Let a second pass: whoever has nothing left to do but to ask a dead peer may find it back then."""

    @abstractmethod
    def peers(self) -> tuple[int, ...]:
        """The other nodes that are alive now, as far as this one knows."""

    @property
    def trained(self) -> int:
        """How many coordinates of ``params`` train; what follows them are float buffers, which are averaged only."""
        return self.params.numel()

    def tensors(self, v: Tensor) -> list[Tensor]:
        """The model's tensors in a vector like it, as views in their own shapes; the vector where none are known."""
        return [v]

    def keep(self, name: str, tensor: Tensor, *, own: bool = False) -> Tensor:
        """Register a tensor that a checkpoint must hold; gives it back, filled where a run is resumed.

        What is a node's ``own``, such as what its codec has left out so far, is not handed on to nodes that come.
        """
        if own:
            self.own |= {name}
        before = self.kept_before.pop(name, None)
        if before is not None:
            tensor.copy_(before)
        self.kept[name] = tensor
        return tensor

    @abstractmethod
    def count(self, name: str, amount: int | Tensor = 1) -> None:
        """Add to a named counter of this node's report, e.g. ``node.count("clipped")``.

        A number that is still on a GPU is added there, and read when somebody asks for the report.
        """

    def learning_rates(self) -> list[tuple[float, float]]:
        """For each parameter group: the learning rate now, and the one its schedule began with."""
        return [(float(g["lr"]), float(g.get("initial_lr", g["lr"]))) for g in self.optimizer.param_groups]

    def total(self, t: Tensor) -> Tensor:
        """The sum of what the members of an island bring, who have a part of the model each; of a node that is one
        process, what it brings. For numbers that are of the whole model: a square of a norm, a product of two vectors.

        Every member must ask, in the same order, and not in the background.
        """
        return t

    def agreed(self, t: Tensor) -> Tensor:
        """What column 0 of an island brings; of a node that is one process, what it brings. For what is decided by a
        clock, or by anything else that members may see differently."""
        return t

    def length(self, g: Tensor) -> Tensor:
        """The Euclidean norm, in an island that of all members' parts; a gradient that has not been changed since it
        came was measured already."""
        return self._norm(g)

    def _norm(self, v: Tensor) -> Tensor:
        """Of a vector, or of a matrix row by row."""
        return norm(v)

    def step_length(self, g: Tensor, *, initial: bool = False) -> Tensor:
        """How far a plain gradient step with ``g`` would go, at today's learning rates or at the initial ones.

        Groups with rates of their own are each measured with theirs.
        """
        rates = [rate for _, rate in self.learning_rates()] if initial else [rate for rate, _ in self.learning_rates()]
        if all(rate == rates[0] for rate in rates):
            return rates[0] * self.length(g)
        lengths = [rate * self._norm(part) for rate, part in zip(rates, self._group_parts(g), strict=True)]
        return norm(torch.stack(lengths))

    def _group_parts(self, g: Tensor) -> list[Tensor]:
        """The parts of a flat vector that belong to each parameter group; one group has all of it."""
        if len(self.optimizer.param_groups) > 1:
            raise NotImplementedError("parameter groups with different learning rates need a backend that knows them")
        return [g]


class Round:
    """Steps between two exchanges: ``async for k in round``."""

    def __init__(self, rounds: _Rounds, number: int, is_resumed: bool) -> None:
        self._rounds = rounds
        self.number = number
        """How many came before it, in all runs that this one goes on with."""
        self.is_resumed = is_resumed
        """Whether it began in the run that this one goes on with."""

    def __aiter__(self) -> Round:
        return self

    async def __anext__(self) -> int:
        return await self._rounds.step_of(self)


class _Rounds:
    """Steps on their way into rounds."""

    def __init__(self, node: Node, period: int) -> None:
        self._steps, self._period, self._given = node.steps(), period, node.step_count
        self._begun: int | None = None
        """A step that has begun, and that no round has given yet: a round is known to come by its first."""
        self._ended = False

    def __aiter__(self) -> _Rounds:
        return self

    async def __anext__(self) -> Round:
        # One that a resumed run finds open is to be closed, even if there is no step left for it.
        is_open = self._given % self._period > 0 and not self._ended
        if not is_open and await self._next() is None:
            raise StopAsyncIteration
        return Round(self, self._given // self._period, is_open)

    async def step_of(self, round: Round) -> int:
        """The next step, if it is one of this round."""
        k = await self._next() if self._given // self._period == round.number else None
        if k is None:
            raise StopAsyncIteration
        self._begun, self._given = None, k + 1
        return k

    async def _next(self) -> int | None:
        """The step that comes next; None if there is none, which is asked once: a user's loop ends once."""
        if self._begun is None and not self._ended:
            try:
                self._begun = await anext(self._steps)
            except StopAsyncIteration:
                self._ended = True
        return self._begun


class Channels:
    """A node's own count of rounds per channel, and the one shape each channel carries."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.rounds: dict[str, int] = {}
        self._carried: dict[str, tuple[torch.Size, torch.dtype]] = {}

    def start_anew(self) -> None:
        """Another join begins: rounds count from 0 again, and channels may carry other shapes."""
        self.rounds.clear()
        self._carried.clear()

    def next_round(self, channel: str) -> int:
        """The number of the round that begins now."""
        round = self.rounds.get(channel, 0)
        self.rounds[channel] = round + 1
        return round

    def check(self, channel: str, v: Tensor) -> None:
        """Refuse a vector unlike those the channel carried before."""
        if not v.is_floating_point():
            raise TypeError(f"a mean needs floating-point numbers, got {v.dtype} on channel {channel!r}")
        carried = self._carried.setdefault(channel, (v.shape, v.dtype))
        if carried != (v.shape, v.dtype):
            raise Mismatch(
                f"node {self._rank}: channel {channel!r} carried {tuple(carried[0])} of {carried[1]} before and "
                f"{tuple(v.shape)} of {v.dtype} now; give each shape a channel of its own",
                channel=channel,
            )


def mean_of(vectors: Sequence[Tensor], channel: str, round: int) -> Tensor:
    """The mean of what nodes 0, 1, ... brought, which it overwrites; Mismatch where they are unlike.

    Summed in that order as differences from the first, so that the mean of equal vectors is that vector to the bit;
    halves as floats, rounded once at the end.
    """
    first = vectors[0]
    for rank, v in enumerate(vectors):
        if v.shape != first.shape or v.dtype != first.dtype:
            shapes = [f"{tuple(each.shape)} of {each.dtype}" for each in (first, v)]
            raise unlike(0, shapes[0], rank, shapes[1], channel=channel, round=round)
    if len(vectors) > 1:
        wide = torch.promote_types(first.dtype, torch.float32)
        base = first.to(wide)
        difference = vectors[1].to(wide).sub_(base)
        for v in vectors[2:]:
            difference += v.to(wide).sub_(base)
        first.copy_(base.add_(difference.div_(len(vectors))))
    return first


_PURPOSES = ("data", "codec", "clock", "sampling", "ties", "skew", "loss")


def stream(seed: int, rank: int, purpose: str, member: int = 0) -> np.random.Generator:
    """A node's random numbers for one purpose ("data", "codec", "clock" ...), the same on every backend.

    Members of a crew have streams of their own; the first has the node's.
    """
    # From 1: NumPy takes [seed, rank, 0] and [seed, rank] for the same seed.
    return np.random.default_rng([seed, rank, 1 + _PURPOSES.index(purpose), *[member] * (member > 0)])
