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

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from flockstep import check
from flockstep.averages.averages import Exact, Mixed
from flockstep.node import Node, Pending
from flockstep.parts.outer_step import WithOuter
from flockstep.strategy import Mean


class _Fragment(NamedTuple):
    begin: int
    end: int
    mean: Mean


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
        x, pieces = node.params, self._cut(node)
        world, change = node.keep("global", x.clone()), node.keep("changes under way", torch.zeros_like(x))
        outer = self.start_outer(node, world, [*(piece.begin for piece in pieces), x.numel()])
        launched = node.keep("launched at", torch.full((len(pieces),), -1))
        flying: dict[int, Pending[Tensor]] = {}

        def launch(p: int) -> None:
            begin, end, mean = pieces[p]
            flying[p] = node.spawn(mean(change[begin:end]))

        async def land(p: int) -> None:
            begin, end, _ = pieces[p]
            learned = world[begin:end] - change[begin:end] - x[begin:end]
            outer.step(world, await flying.pop(p), begin, round=self._rounds(p, int(launched[p])))
            if self.alpha is None:
                # Statistics do not add up: the others' mean is all that is taken.
                learned[max(node.trained - begin, 0) :] = 0
                torch.sub(world[begin:end], learned, out=x[begin:end])
            else:
                x[begin:end].mul_(self.alpha).add_(world[begin:end], alpha=1 - self.alpha)
            launched[p] = -1

        for p in (launched >= 0).nonzero().flatten().tolist():
            launch(p)
        t = node.step_count
        async for k in node.steps():
            await node.step(await node.gradient(x))
            t = k + 1
            for p, (begin, end, _) in enumerate(pieces):
                if self._leaves(p, t):
                    torch.sub(world[begin:end], x[begin:end], out=change[begin:end])
                    launched[p] = t
                    launch(p)
                if p in flying and t - int(launched[p]) >= self.delay:
                    await land(p)
        for p, (begin, end, mean) in enumerate(pieces):
            if p in flying:
                await land(p)
            if not self._leaves(p, t):
                left = await mean(world[begin:end] - x[begin:end])
                outer.step(world, left, begin, round=self._rounds(p, t) + 1)
        x.copy_(world)

    def _first(self, p: int) -> int:
        """After how many steps a fragment leaves for the first time, 1 to a period."""
        turn = (p + 1) * self.period // self.fragments
        return (turn - self.delay - 1) % self.period + 1

    def _leaves(self, p: int, t: int) -> bool:
        """Whether a fragment leaves after ``t`` steps."""
        return t > 0 and (t - self._first(p)) % self.period == 0

    def _rounds(self, p: int, t: int) -> int:
        """How often a fragment has left in ``t`` steps."""
        return (t - self._first(p)) // self.period + 1

    def _cut(self, node: Node) -> list[_Fragment]:
        """Pieces of about equal size, between tensors where there are enough of them."""
        first = int(node.params.storage_offset())
        ends = [int(tensor.storage_offset()) - first + tensor.numel() for tensor in node.tensors(node.params)]
        count, size = node.params.numel(), self.fragments
        wanted = [count * p // size for p in range(1, size)]
        near = [min(ends, key=lambda end: abs(end - goal)) for goal in wanted]
        # A tensor that is larger than a fragment must be cut, wherever that is.
        edges = [0, *(near if len({0, *near, count}) == size + 1 else wanted), count]
        return [
            _Fragment(begin, end, self._start(node, f"fragment {p}", begin, end))
            for p, (begin, end) in enumerate(pairwise(edges))
        ]

    def _start(self, node: Node, channel: str, begin: int, end: int) -> Mean:
        """The average of a fragment. Statistics go in full (codecs/tail.py): averages see to it in whole models, and in
        part of one it is not to be seen where they begin."""
        mean, trained = self.average.start(node, channel), max(node.trained - begin, 0)
        whole = end - begin == node.params.numel()
        if whole or begin + trained >= end or isinstance(self.average, Exact):
            return mean

        async def in_two(v: Tensor) -> Tensor:
            coded = await mean(v[:trained]) if trained else v[:0]
            return torch.cat([coded, await node.mean(v[trained:], f"{channel}, statistics")])

        return in_two
