"""Synchronise while you train (HPSGD): the mean of one period's change travels during the next period's steps.

State: W, the global model, the same on all nodes; x_i, a replica of it that trains.

    period r    x_i starts at s_i and takes k_r steps;      change_{r,i} = s_i - x_i
    merge       W_{r+1} = W_r - outer_lr * mean_i change_{r-1,i};      launch the mean of change_r
                x_i <- x_i - pull * (x_i - W_{r+1})

W lacks the period that has just ended. With ``pull=1``, the paper's form, so does the replica: it restarts from W, and
takes the same steps again as long as W has not heard of them. By default a replica keeps three quarters of where it is.
Whatever the pull is, what is sent is what steps have changed, so every gradient enters W exactly once. When the run
ends, what is under way and what is pending are both taken in. k is fixed (``period``) or adapts: as many steps as
fit into one synchronisation. Each node says how many fitted; the number travels with the mean, so that all merge at the
same step.

Why a quarter: where k steps go the share c of the way to the optimum, W and a replica follow

    z^2 - (1 + (1 - pull)(1 - c)) z + (1 - pull)(1 - c) + outer_lr pull c = 0

Steps in a narrow valley (c = 1) swing by z^2 - z + outer_lr pull = 0, and 1/4 is the largest pull without a swing. How
far nodes lie apart shrinks by (1 - pull)(1 - c) per period: it cannot swing.

Zhou, Ye, Zhang, Lv: hierarchical parallel SGD, arXiv 2009.02701.

Sends   one change per period, in the background
Waits   for a mean that takes longer than its period
Keeps   W, where the replica started, the change under way, and the batch-norm statistics it is the change of
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.averages.averages import Exact
from flockstep.node import Node, Pending
from flockstep.parts.oscillation import Oscillation
from flockstep.parts.outer_step import Outer
from flockstep.parts.slow_network import SlowNetworkWarning
from flockstep.strategy import Average, Mean

_REMEDY = "send less (average=Coded(codec=Stochastic(bits=8))), or take LocalSGD(period=16), which waits"
_FIRST, _MORE = 8, 4
"""k as long as nobody knows better, and how much longer a period becomes when a synchronisation did not fit."""


@dataclass(frozen=True, kw_only=True)
class HPSGD:
    """HPSGD: every node trains a replica of the global model while the last period's change is averaged.

        change_{r,i} = s_i - x_i                                   at the end of period r; s_i is x_i at its beginning
        W_{r+1} <- W_r - outer_lr * mean_i change_{r-1,i}          while the mean of change_r begins to travel
        x_i <- x_i - pull * (x_i - W_{r+1})

    W is the global model, x_i the replica of node i. Every gradient enters W exactly once. Every node ends with the
    same model.

    Zhou, Ye, Zhang, Lv: hierarchical parallel SGD, 2020, arXiv 2009.02701, which has ``pull=1``.

    Args:
        period: Steps that a node takes between two exchanges. A mean that takes longer is waited for. None: as many as
            fit into one exchange, from ``min_period`` to ``max_period``, the same number on every node.
        min_period: Least steps of a period, where ``period`` is None.
        max_period: Most steps of a period, where ``period`` is None.
        outer_lr: Rate of the outer step. 1, the default, takes the mean change as it is.
        pull: Share of its lead on the global model, above 0 and at most 1, that a replica gives up at an exchange. 1 is
            the paper's: the replica restarts from W, and may swing. 0.25, the default, is the most without a swing.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries changes.

    Example:
        with fs.join(model, optimizer, fs.HPSGD()):
            train(model, optimizer)  # your own loop
    """

    own_gradients: ClassVar[bool] = True

    period: int | None = None
    min_period: int = 1
    max_period: int = 64
    outer_lr: float = 1.0
    pull: float = 0.25
    average: Average = Exact()

    def __post_init__(self) -> None:
        if self.period is not None:
            check.whole(self, "period", self.period)
        if check.whole(self, "max_period", self.max_period) < check.whole(self, "min_period", self.min_period):
            raise ValueError(f"HPSGD.max_period must be at least min_period, {self.min_period}, got {self.max_period}")
        check.positive(self, "outer_lr", self.outer_lr)
        check.fraction(self, "pull", check.positive(self, "pull", self.pull))
        check.has(self, "average", self.average, "start", kind="an average such as Exact()")

    async def run(self, node: Node) -> None:
        """Periods of local steps, each with the mean of the last one behind it."""
        x, mean, outer = node.params, self.average.start(node, "change"), Outer(node, lr=self.outer_lr)
        # What it sees are swings of merges after which replicas restart from W; others hold no swing for long.
        watch = Oscillation("HPSGD", speaks=node.rank == 0) if self.pull == 1 else None
        rarely = SlowNetworkWarning("HPSGD", remedy=_REMEDY, speaks=node.rank == 0)
        world, begin = node.keep("global", x.clone()), node.keep("begin", x.clone())
        change = node.keep("change under way", torch.zeros_like(x))
        since = node.keep("statistics under way", outer.statistics(x).clone())
        state = node.keep("period", torch.tensor([self.period or self._within(_FIRST), 0, 0]))
        k, taken, fitted = state.tolist()
        flight = _Flight(self, node, mean, change, fitted) if fitted else None

        def merge(landed: tuple[Tensor, float]) -> int:
            """Take in what was under way; how many steps the next period has."""
            moved, fit = landed
            if watch is not None:
                watch.see(moved[: node.trained])
            outer.step(world, moved, since=since)
            if self.period:
                return self.period
            fitting = self._within(math.ceil(fit))
            rarely.see(fitting)
            return fitting

        async for _ in node.steps():
            await node.step(await node.gradient(x))
            taken += 1
            if flight is not None:
                flight.look(taken)
            if taken == k:
                # One that is still under way needs more steps; nobody knows how many more.
                fitted = k if flight is None else flight.fitted or _MORE * k
                landed = None if flight is None else await flight.landed()
                torch.sub(begin, x, out=change)
                if landed is not None:
                    k = merge(landed)
                since.copy_(outer.statistics(begin))
                x[: node.trained].lerp_(world[: node.trained], self.pull)
                outer.statistics(x).copy_(outer.statistics(world))
                begin.copy_(x)
                flight, taken = _Flight(self, node, mean, change, fitted), 0
            state.copy_(torch.tensor([k, taken, fitted]))
        if flight is not None:
            merge(await flight.landed())
        if taken:
            outer.step(world, await mean(begin - x), since=outer.statistics(begin))
        x.copy_(world)
        begin.copy_(world)
        state.copy_(torch.tensor([k, 0, 0]))

    def _within(self, k: int) -> int:
        return min(max(k, self.min_period), self.max_period)


class _Flight:
    """A mean under way, and with it the number of steps that fitted into the one before."""

    def __init__(self, strategy: HPSGD, node: Node, mean: Mean, change: Tensor, fitted: int) -> None:
        self._change: Pending[Tensor] = node.spawn(mean(change))
        told = torch.tensor([float(fitted)], dtype=torch.float64)
        self._told = None if strategy.period else node.spawn(node.mean(told, "steps that fit"))
        self.fitted = 0

    def look(self, taken: int) -> None:
        """After so many steps: is it there?"""
        if not self.fitted and self._change.done:
            self.fitted = taken

    async def landed(self) -> tuple[Tensor, float]:
        """The mean change, and how many steps fitted, by the mean of all."""
        return await self._change, 0.0 if self._told is None else float(await self._told)
