"""Synchronise while you train (HPSGD): the mean of one period's change travels during the next period's steps.

State: W, the global model, the same on all nodes; x_i, a replica of it that trains.

    period r    x_i starts at W_r and takes k_r steps;      change_{r,i} = W_r - x_i
    merge       W_{r+1} = W_r - outer_lr * mean_i change_{r-1,i};      x_i <- W_{r+1};      launch the mean of change_r

What a node has learned in a period leaves its replica at the merge, but is under way, and comes back with everybody
else's at the next one: every gradient enters W exactly once. When the run ends, what is under way and what is pending
are both taken in. k is fixed (``local_steps``) or adapts: as many steps as fit into one synchronisation. Each node says
how many fitted; the number travels with the mean, so that all merge at the same step.

Zhou, Ye, Zhang, Lv: hierarchical parallel SGD, arXiv 2009.02701.

Sends   one change per period, in the background
Waits   for a mean that takes longer than its period
Keeps   W, the change under way, and the batch-norm statistics it is the change of
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.node import Node, Pending
from flockstep.parts.averages import Exact
from flockstep.parts.oscillation import Oscillation
from flockstep.parts.outer import Outer
from flockstep.strategy import Average, Mean

_FIRST, _MORE = 8, 4
"""k as long as nobody knows better, and how much longer a period becomes when a synchronisation did not fit."""


@dataclass(frozen=True, kw_only=True)
class HPSGD:
    """Train on a replica while the last period's change is averaged."""

    own_gradients: ClassVar[bool] = True

    local_steps: int | None = None
    """k; None: as many as fit into one synchronisation, from ``k_min`` to ``k_max``."""
    k_min: int = 1
    k_max: int = 64
    outer_lr: float = 1.0
    average: Average = Exact()

    def __post_init__(self) -> None:
        if self.local_steps is not None:
            check.whole(self, "local_steps", self.local_steps)
        if check.whole(self, "k_max", self.k_max) < check.whole(self, "k_min", self.k_min):
            raise ValueError(f"HPSGD.k_max must be at least k_min, {self.k_min}, got {self.k_max}")
        check.positive(self, "outer_lr", self.outer_lr)
        check.has(self, "average", self.average, "start", kind="an average such as Exact()")

    async def run(self, node: Node) -> None:
        """Periods of local steps, each with the mean of the last one behind it."""
        x, mean, outer = node.params, self.average.start(node, "change"), Outer(node, lr=self.outer_lr)
        watch = Oscillation("HPSGD", speaks=node.rank == 0)
        world, change = node.keep("global", x.clone()), node.keep("change under way", torch.zeros_like(x))
        since = node.keep("statistics under way", outer.statistics(x).clone())
        state = node.keep("period", torch.tensor([self.local_steps or self._within(_FIRST), 0, 0]))
        k, taken, fitted = state.tolist()
        flight = _Flight(self, node, mean, change, fitted) if fitted else None
        async for _ in node.steps():
            await node.step(await node.gradient(x))
            taken += 1
            if flight is not None:
                flight.look(taken)
            if taken == k:
                # One that is still under way needs more steps; nobody knows how many more.
                fitted = k if flight is None else flight.fitted or _MORE * k
                landed = None if flight is None else await flight.landed()
                torch.sub(world, x, out=change)
                begun = outer.statistics(world).clone()
                if landed is not None:
                    k = self._merge(world, *landed, outer, since, watch)
                x.copy_(world)
                since.copy_(begun)
                flight, taken = _Flight(self, node, mean, change, fitted), 0
            state.copy_(torch.tensor([k, taken, fitted]))
        last, begun = world - x, outer.statistics(world).clone()
        if flight is not None:
            self._merge(world, *await flight.landed(), outer, since, watch)
        if taken:
            outer.step(world, await mean(last), since=begun)
        x.copy_(world)
        state.copy_(torch.tensor([k, 0, 0]))

    def _merge(
        self, world: Tensor, change: Tensor, fitted: float, outer: Outer, since: Tensor, watch: Oscillation
    ) -> int:
        """Take in what was under way; how many steps the next period has."""
        watch.see(change[: change.numel() - since.numel()])
        outer.step(world, change, since=since)
        return self.local_steps or self._within(math.ceil(fitted))

    def _within(self, k: int) -> int:
        return min(max(k, self.k_min), self.k_max)


class _Flight:
    """A mean under way, and with it the number of steps that fitted into the one before."""

    def __init__(self, strategy: HPSGD, node: Node, mean: Mean, change: Tensor, fitted: int) -> None:
        self._change: Pending[Tensor] = node.spawn(mean(change))
        told = torch.tensor([float(fitted)], dtype=torch.float64)
        self._told = None if strategy.local_steps else node.spawn(node.mean(told, "steps that fit"))
        self.fitted = 0

    def look(self, taken: int) -> None:
        """After so many steps: is it there?"""
        if not self.fitted and self._change.done:
            self.fitted = taken

    async def landed(self) -> tuple[Tensor, float]:
        """The mean change, and how many steps fitted, by the mean of all."""
        return await self._change, 0.0 if self._told is None else float(await self._told)
