"""DiLoCo in pieces: a fragment of the model at a time, taken in a few steps later, so that links are never crowded.

State: W, the global model; x_i, which trains. Both are cut into fragments p = 0, 1, ... P-1.

    ``delay`` steps before its turn     launch the mean of change_p = W_p - x_p
    on its turn, (p+1) H/P (mod H)      W_p <- Outer(W_p, mean change_p);
                                        x_p <- W_p + what x_p has learned since the launch

A fragment whose first turn comes before ``delay`` steps are taken waits for its next one. With ``delay=0`` a node waits
for the mean at once. As published, ``alpha`` mixes instead: x_p <- (1-alpha) W_p + alpha x_p, and what a fragment has
learned during the delay is dropped, or partly kept. Where the delay is a large part of the period, that is much.
When the run ends, what is under way is taken in, and what each fragment has learned since is closed as one more round.

Outer is by default a plain average whose momentum grows with the rounds up to what the number of nodes bears (see
``parts/outer_step.py``); the paper's is ``outer_lr=0.4, outer_momentum=0.9``; ``outer`` takes any torch optimizer.

Douillard et al.: streaming DiLoCo with overlapping communication, 2025, arXiv 2501.18512.

Sends   every fragment's change once every ``period`` steps
Waits   for a mean that takes longer than ``delay`` steps
Keeps   W, the outer momentum, and the changes under way
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from flockstep import check
from flockstep.averages.averages import Exact, Mixed
from flockstep.node import Node
from flockstep.parts.outer_step import WithOuter
from flockstep.parts.statistics import statistics, trained
from flockstep.strategy import Mean


@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo(WithOuter):
    """Streaming DiLoCo: the model in fragments, each averaged at its own turn and taken in a few steps later.

        ``delay`` steps before its turn:      launch the mean of change_p = W_p - x_p
        every ``period`` steps, on its turn:  W_p <- Outer(W_p, mean change_p)
                                              x_p <- W_p + what x_p has learned since the launch
        published:                            x_p <- (1 - alpha) W_p + alpha x_p

    W is the global model, x the one that a node trains, p a fragment of either, Outer that of ``DiLoCo``. A node waits
    only for a mean that takes longer than ``delay`` steps. Every node ends with the same model.

    Douillard et al.: streaming DiLoCo with overlapping communication, 2025, arXiv 2501.18512, which has ``outer_lr=0.4,
    outer_momentum=0.9`` and an ``alpha``.

    Args:
        period: Steps that a node takes between two exchanges. It counts for every fragment by itself.
        outer_lr: Rate of the outer step. 1, the default, goes to where the mean of all nodes was.
        outer_momentum: Momentum of the outer step, from 0 to below 1. None: 1 - 1/g in round r, from 1, on n nodes,
            with g = min(sqrt(n), 1 + period / 8, max(1, r / 5)), so that it grows from 0.
        outer: Makes the torch optimizer that takes the outer step, in place of ``outer_lr`` and ``outer_momentum``:
            ``functools.partial(torch.optim.AdamW, lr=1e-3)``. None: the rule of ``DiLoCo``.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries changes of
            fragments: with several of them not ``Mixed``, ``Compensated`` or ``PowerSGD``.
        fragments: Pieces of about equal size that the model is cut into, between tensors where that is possible; at
            most ``period``.
        delay: Steps from the launch of a fragment's mean to its turn; 0: the node waits for it. Below ``period``.
        alpha: Share of its own fragment, from 0 to 1, that a node keeps on its turn, as published. None: it keeps all
            that it has learned since the launch.

    Example:
        with fs.join(model, optimizer, fs.StreamingDiLoCo(period=100, fragments=4, delay=5)):
            train(model, optimizer)  # your own loop
    """

    period: int = 100
    fragments: int = 4
    delay: int = 5
    alpha: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if check.whole(self, "fragments", self.fragments) > self.period:
            raise ValueError(
                f"StreamingDiLoCo.fragments must be at most the period, {self.period}, got {self.fragments}"
            )
        if check.whole(self, "delay", self.delay, at_least=0) >= self.period:
            raise ValueError(f"StreamingDiLoCo.delay must be below the period, {self.period}, got {self.delay}")
        if isinstance(self.average, Mixed) and self.fragments > 1:
            raise ValueError(
                "StreamingDiLoCo.average must be one over all nodes, such as Exact() or Coded(codec=Cast()), not Mixed "
                "while there are several fragments: neighbours cannot tell apart messages of two that are under way"
            )
        if self.alpha is not None:
            check.fraction(self, "alpha", self.alpha)

    async def run(self, node: Node) -> None:
        """Local steps; at each, a fragment may leave and another arrive."""
        x, t = node.params, node.step_count
        W, fragments = self._cut(node)
        async for k in node.steps():
            await node.step(await node.gradient(x))
            t = k + 1
            for fragment in fragments:
                if fragment.is_due(t):
                    fragment.launch(t)
                if fragment.is_back(t):
                    await fragment.merge()
        for fragment in fragments:
            await fragment.close(t)
        x.copy_(W)

    def _cut(self, node: Node) -> tuple[Tensor, list[_Fragment]]:
        """W, and the fragments: of about equal size, cut between tensors where there are enough of them."""
        first = int(node.params.storage_offset())
        ends = [int(tensor.storage_offset()) - first + tensor.numel() for tensor in node.tensors(node.params)]
        count, size = node.params.numel(), self.fragments
        wanted = [count * p // size for p in range(1, size)]
        near = [min(ends, key=lambda end: abs(end - goal)) for goal in wanted]
        # A tensor that is larger than a fragment must be cut, wherever that is.
        edges = [0, *(near if len({0, *near, count}) == size + 1 else wanted), count]
        whole = _Whole(self, node, edges)
        return whole.W, [_Fragment(whole, p, begin, end) for p, (begin, end) in enumerate(pairwise(edges))]


class _Whole:
    """What fragments are parts of."""

    def __init__(self, strategy: StreamingDiLoCo, node: Node, edges: Sequence[int]) -> None:
        self.strategy, self.node = strategy, node
        self.W = node.keep("global", node.params.clone())
        self.change = node.keep("changes under way", torch.zeros_like(node.params))
        self.outer = strategy.start_outer(node, self.W, edges)
        self.launched = node.keep("launched at", torch.full((len(edges) - 1,), -1))
        """After how many steps each fragment left; -1 where none is under way."""


class _Fragment:
    """Part p of the model: views of x, of W, and of the change that is under way."""

    def __init__(self, whole: _Whole, p: int, begin: int, end: int) -> None:
        self._whole, self._begin, self._launched = whole, begin, whole.launched[p]
        self._x, self._W, self._change = (v[begin:end] for v in (whole.node.params, whole.W, whole.change))
        self._mean = self._start_mean(f"fragment {p}")
        self._period, self._delay, self._alpha = whole.strategy.period, whole.strategy.delay, whole.strategy.alpha
        turn = (p + 1) * self._period // whole.strategy.fragments
        self._first = (turn - self._delay - 1) % self._period + 1
        """After how many steps it leaves for the first time, 1 to a period."""
        # What was under way when a run was stopped is sent again.
        self._flight = whole.node.spawn(self._mean(self._change)) if self._launched >= 0 else None

    def is_due(self, t: int) -> bool:
        """Whether it leaves after ``t`` steps."""
        return t > 0 and (t - self._first) % self._period == 0

    def launch(self, t: int) -> None:
        """Let the mean of its change travel."""
        torch.sub(self._W, self._x, out=self._change)
        self._launched.fill_(t)
        self._flight = self._whole.node.spawn(self._mean(self._change))

    def is_back(self, t: int) -> bool:
        """Whether it is its turn to be taken in: a mean that takes longer is waited for."""
        return self._flight is not None and t - int(self._launched) >= self._delay

    async def merge(self) -> None:
        """W_p <- Outer(W_p, mean change_p);  x_p <- W_p + what x_p has learned since the launch."""
        learned = self._W - self._change - self._x
        if self._flight is not None:
            self._outer_step(await self._flight, round=self._rounds(int(self._launched)))
        if self._alpha is None:
            # Statistics do not add up: the others' mean is all that is taken.
            statistics(learned, self._whole.node, self._begin).zero_()
            torch.sub(self._W, learned, out=self._x)
        else:
            self._x.mul_(self._alpha).add_(self._W, alpha=1 - self._alpha)
        self._flight = None
        self._launched.fill_(-1)

    async def close(self, t: int) -> None:
        """The run ends after ``t`` steps: take in what is under way, and what was learned since as one more round."""
        if self._flight is not None:
            await self.merge()
        if not self.is_due(t):
            self._outer_step(await self._mean(self._W - self._x), round=self._rounds(t) + 1)

    def _outer_step(self, change: Tensor, *, round: int) -> None:
        self._whole.outer.step(self._whole.W, change, self._begin, round=round)

    def _rounds(self, t: int) -> int:
        """How often it has left in ``t`` steps."""
        return (t - self._first) // self._period + 1

    def _start_mean(self, channel: str) -> Mean:
        """Its average. Statistics go in full (codecs/tail.py): averages see to it in whole models, and in part of one
        it is not to be seen where they begin."""
        node, average = self._whole.node, self._whole.strategy.average
        mean, trains = average.start(node, channel), trained(self._x, node, self._begin).numel()
        whole = self._x.numel() == node.params.numel()
        if whole or trains == self._x.numel() or isinstance(average, Exact):
            return mean

        async def in_two(v: Tensor) -> Tensor:
            coded = await mean(v[:trains]) if trains else v[:0]
            return torch.cat([coded, await node.mean(v[trains:], f"{channel}, statistics")])

        return in_two
