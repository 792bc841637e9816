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

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.averages.averages import Exact
from flockstep.node import Node
from flockstep.parts.adaptive_period import AdaptivePeriod
from flockstep.parts.oscillation import Oscillation
from flockstep.parts.outer_step import Outer
from flockstep.parts.slow_network import SlowNetworkWarning
from flockstep.parts.statistics import statistics, trained
from flockstep.strategy import Average

_REMEDY = "send less (average=Coded(codec=Stochastic(bits=8))), or take LocalSGD(period=16), which waits"


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
        W, s = node.keep("global", x.clone()), node.keep("begin", x.clone())
        change = node.keep("change under way", torch.zeros_like(x))
        since = node.keep("statistics under way", statistics(x, node).clone())
        watch, period = self._watch(node), self._start_period(node, lambda: mean(change))

        async def take_in_what_is_under_way() -> None:
            if (moved := await period.landed()) is not None:
                outer.step(W, moved, since=since)
                watch(trained(moved, node))

        async for _ in node.steps():
            await node.step(await node.gradient(x))
            if period.ends():
                await take_in_what_is_under_way()
                torch.sub(s, x, out=change)
                since.copy_(statistics(s, node))
                trained(x, node).lerp_(trained(W, node), self.pull)
                statistics(x, node).copy_(statistics(W, node))
                s.copy_(x)
                period.begin()
        await take_in_what_is_under_way()
        if period.taken:
            outer.step(W, await mean(s - x), since=statistics(s, node))
        x.copy_(s.copy_(W))
        period.rest()

    def _watch(self, node: Node) -> Callable[[Tensor], None]:
        # What it sees are swings of merges after which replicas restart from W; others hold no swing for long.
        return Oscillation("HPSGD", speaks=node.rank == node.column == 0).see if self.pull == 1 else lambda change: None

    def _start_period(self, node: Node, mean: Callable[[], Coroutine[Any, Any, Tensor]]) -> AdaptivePeriod:
        warning = SlowNetworkWarning("HPSGD", remedy=_REMEDY, speaks=node.rank == node.column == 0)
        least, most = self.min_period, self.max_period
        return AdaptivePeriod(node, mean, fixed=self.period, least=least, most=most, warning=warning)
