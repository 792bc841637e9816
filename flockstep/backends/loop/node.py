"""A node whose gradients and steps are those of the user's own loop."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flockstep.backends.loop import snapshots
from flockstep.backends.loop.driver import Driver, Park
from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.island import Island
from flockstep.budget import Ledger
from flockstep.errors import CodecRange, Diverged, LostPeer
from flockstep.guard import Guarded
from flockstep.message import NOTHING
from flockstep.trace import NodeReport, Row
from flockstep.vector import norm

Batch = TypeVar("Batch")
_ELSEWHERE = "something that another process of its island has"
_log = logging.getLogger("flockstep")


class JoinedNode(Guarded):
    """What ``with fs.join(...) as node`` gives: the verbs for the strategy, and a few things for the user."""

    tally: NodeReport
    now: float
    """Seconds since the node began, virtual or real."""
    flat: FlatModel
    island: Island | None = None
    """The other processes that train this node's model with it, where there are any."""
    driver: Driver
    model: nn.Module
    rows: list[Row]
    """What ``log`` recorded."""
    onlookers: tuple[Callable[[Row], None], ...] = ()
    """Who is told of each row as it comes."""
    virtual = False
    """Whether its seconds are those of a simulation."""
    _meetings = 0
    own_loop = True
    outlives_deaths = False
    """Whether this node's run goes on without those who are lost: one-sided runs do, and elastic ones."""
    one_sided = False
    """Whether this node's run goes on without those who are lost, and takes in those who come late."""
    stateful: tuple[Any, ...] = ()
    """Further things with a state_dict, kept in checkpoints."""
    ledger: Ledger | None = None
    """What all nodes have spent of the budget, where there is one."""
    not_finite = "skip"
    """What becomes of a gradient that is not finite: "skip" or "raise"."""
    scaled = False
    """Whether a GradScaler is at work: it looks for the scale at which gradients overflow, on purpose."""
    spread = math.nan
    """The models' mean squared distance from their average, when ``average_model`` was last asked for it."""

    def steps(self) -> AsyncIterator[int]:
        """As many as the user's loop takes."""
        return _Steps(self)

    async def gradient(self, x: Tensor) -> Tensor:
        """The gradient of the user's next ``backward``."""
        if x.data_ptr() != self.params.data_ptr():
            raise NotImplementedError(
                "this strategy asks for a gradient at another point than the model's own, "
                "which a loop that computes one gradient per step cannot give; run it on a workload instead"
            )
        g: Tensor = await Park("gradient")
        self.tally.gradients += 1
        if self.flat.statistics.mended:
            self.count("statistics put back", self.flat.statistics.mended)
            self.flat.statistics.mended = 0
        if self.not_finite == "raise" and not self.scaled:
            bad = self.flat.not_finite(g)
            if not bool(self._holds(torch.tensor(bad is None))):
                self._raise(bad)
        if self.flat.unseen:
            return self._unseen(g)
        g = self.guarded(g)
        self.flat.guarded(g, self._fine)
        return g

    def _unseen(self, g: Tensor) -> Tensor:
        self.refused = not self.flat.unseen_are_finite()
        if self.refused:
            self.refuse(g)
            self.count("not finite")
        return g

    def refuse(self, g: Tensor) -> None:
        """Say so, once; a model that is not finite itself will never have another gradient, so that ends the loop."""
        self.check_finite(self.params, "the model", step=self.step_count - 1)
        if not self.scaled and not self.tally.counts.get("not finite"):
            _log.warning(
                "node %d, step %d: the gradient of %s is not finite; such steps are skipped and counted "
                '(join(..., not_finite="raise") ends the loop instead)',
                self.rank,
                self.step_count,
                self.flat.not_finite(g) or _ELSEWHERE,
            )

    def _raise(self, name: str | None) -> None:
        where = f"node {self.rank}, step {self.step_count}"
        raise Diverged(f"{where}: the gradient of {name or _ELSEWHERE} is not finite", rank=self.rank)

    async def named(self, run: Awaitable[None]) -> None:
        """A strategy's run; where a codec cannot take a model that is not finite, it is the model that is named."""
        try:
            await run
        except CodecRange:
            self.check_finite(self.params, "the model")
            raise

    # In an island -----------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """How many processes this node is."""
        return 1 if self.island is None else self.island.columns

    def total(self, t: Tensor) -> Tensor:
        return t if self.island is None else self.island.total(t)

    def agreed(self, t: Tensor) -> Tensor:
        return t if self.island is None else self.island.first(t)

    def _norm(self, v: Tensor) -> Tensor:
        length = norm(v)
        if self.island is None or self.island.columns == 1:
            return length
        # As wide as can be: a square may overflow where no length does.
        return self.total(length.double().square()).sqrt().to(length.dtype)

    def _holds(self, fine: Tensor) -> Tensor:
        if self.island is None or self.island.columns == 1:
            return fine
        return self.total((~fine).float()) == 0

    def name_of_not_finite(self, v: Tensor) -> str | None:
        return self.flat.not_finite(v) if v.shape == self.params.shape else None

    async def step(self, g: Tensor | None) -> None:
        """The user's own ``optimizer.step``."""
        g = self.or_skip(g)
        if g is None:
            self.tally.skipped += 1
        # What it makes of the model is looked at before that is sent, when the next gradient is not finite, and at the
        # end: after every step it would cost as much as all the rest.
        await Park("step", g)

    def _group_parts(self, g: Tensor) -> list[Tensor]:
        return [self.flat.parts_of(group["params"], g) for group in self.optimizer.param_groups]

    @property
    def trained(self) -> int:
        return self.params.numel() - self.flat.buffers(self.params).numel()

    def tensors(self, v: Tensor) -> list[Tensor]:
        return self.flat.views(v)

    def stop_computing(self) -> None:
        """The user's code pauses for the strategy's."""

    def start_computing(self) -> None:
        """The user's code goes on."""

    def at_boundary(self) -> None:
        """This node stands between two steps: in an elastic run others may come in here, or this one once more."""

    def come_in_again(self) -> None:
        """The others went on without this node: be where they are."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """HOST:PORT of this node's mailbox, where one who comes late can join; empty where there is none."""
        return ""

    # For the user ------------------------------------------------------------------------------------------------

    @property
    def progress(self) -> float:
        """How much of the budget all nodes together have spent, as far as this one knows: from 0 to 1."""
        if self.ledger is None:
            raise ValueError("progress is of a budget: join(..., budget=fs.Budget(steps=...))")
        return self.ledger.progress

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The loader's batches, epoch after epoch, until all nodes together have spent the budget."""
        epoch = 0
        while self.progress < 1:
            # Where a sampler shuffles by epoch, as torch's DistributedSampler does.
            sampler: Any = getattr(loader, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            before = self.step_count
            for batch in loader:
                yield batch
                if self.progress >= 1:
                    return
            if self.step_count == before:
                raise ValueError("batches went through the loader without a single optimizer.step(): nothing is spent")
            epoch += 1

    def meet(self) -> None:
        """Wait until every node has come here: after the loop, ``average_model`` then finds everyone's last step.

        In a one-sided run, every node that lives; for one that is far behind, as long as a question may take.
        """
        self._meetings += 1
        self.driver.call(self._await_the_living() if self.outlives_deaths else self.mean(torch.zeros(1), "meeting"))

    async def _await_the_living(self) -> None:
        # A question that nobody answers yet waits until somebody does.
        topic = f"flockstep meeting {self._meetings}"
        self.answer(topic, lambda peer, message: NOTHING)
        for peer in self.peers():
            with suppress(LostPeer):
                await self.ask(peer, topic, NOTHING)

    def average_model(self, into: nn.Module | None = None) -> nn.Module:
        """A copy of the model with the average of all living nodes' weights and float buffers, for evaluation.

        Asks the others for theirs without stopping them; any node may call it, alone or all together. How far the
        models lie apart is in ``spread`` then. A model that cannot be copied is written ``into`` another of its kind.
        All processes of an island call it together.
        """
        gathered = self.driver.call(self._gather())
        self.spread = float(self.total(torch.tensor(gathered.spread, dtype=torch.float64)))
        average = self._copy() if into is None else into
        self.flat.load(average, gathered.mean.to(self.params.dtype))
        return average

    def _copy(self) -> nn.Module:
        try:
            return copy.deepcopy(self.model)
        except Exception as error:
            raise TypeError(
                f"this model cannot be copied: {error}\n"
                "  give average_model(into=...) another model of the same kind to write to"
            ) from error

    async def _gather(self) -> snapshots.Gathering:
        self.flat.pull()
        self.check_finite(self.params, "the model")
        gathering = snapshots.Gathering(self.params)
        for peer in self.peers():
            try:
                if not gathering.add(await self.ask(peer, snapshots.TOPIC, NOTHING)) and not self.outlives_deaths:
                    raise Diverged(f"the model of node {peer} is not finite", rank=peer)
            except LostPeer:
                if not self.outlives_deaths:
                    raise
        return gathering

    def log(self, loss: float) -> None:
        """Record a loss, with the time, the bytes and the spread so far: node 0's are the rows of the trace."""
        row = Row(self.now, self.step_count, float(loss), float(self.tally.bytes_sent), self.spread)
        self.rows.append(row)
        for tell in self.onlookers:
            tell(row)

    def save(self, path: str | Path) -> Path:
        """Write this node's part of a checkpoint under ``path``; gives its folder back. Every node must save."""
        from flockstep.backends.loop import checkpoint

        return checkpoint.save(self, Path(path))

    def report(self) -> NodeReport:
        """What the node did so far: steps, bytes, seconds computing, waiting and talking."""
        self.tally.settle()
        return copy.deepcopy(self.tally)


class _Steps:
    def __init__(self, node: JoinedNode) -> None:
        self._node = node

    def __aiter__(self) -> _Steps:
        return self

    async def __anext__(self) -> int:
        if not await Park("next"):
            self._node.check_finite(self._node.params, "the model")
            raise StopAsyncIteration
        node, k = self._node, self._node.step_count
        node.step_count = node.tally.steps = k + 1
        if node.ledger is not None:
            node.ledger.step()
        return k
