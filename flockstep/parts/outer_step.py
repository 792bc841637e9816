"""The outer step: what the global model makes of the mean change that nodes bring.

    W <- W - lr * change                                                        plain
    m <- mu m + change;      W <- W - lr * (change + mu m)                      Nesterov's momentum, as torch has it

or whatever a torch optimizer makes of the change as W's gradient.

The momentum of round r, from 1, where none is given:

    mu_r = 1 - 1/g_r,      g_r = min(sqrt(n), 1 + H/8, max(1, r/5))

A change enters W g = lr / (1 - mu) times in the end, over about g rounds of H steps. Three things bound that. The mean
of n changes carries 1/n of their noise, and stands a rate sqrt(n) times higher, as a batch n times larger does. Inner
optimizers have a momentum of their own, over some ten steps: one outside that reaches no further than theirs only makes
them swing, so short periods get little of it. And what is to be averaged over g rounds needs several times as many
before it: g_r is at most a fifth of the rounds so far, whenever the run ends, so nobody need know when. One node, and
the first five rounds, have no momentum: plain averages.

Float buffers (batch-norm statistics) are part of a model but are not trained: they become the nodes' mean, whatever the
outer rate is. Momentum could carry a variance below zero, and so could changes that are added a period late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.averages.averages import Exact
from flockstep.node import Node, OptimizerFactory
from flockstep.parts.statistics import statistics, trained
from flockstep.strategy import Average

_ROUNDS_PER_GAIN, _STEPS_PER_GAIN = 5, 8


def ramped(round: int, size: int, period: int) -> float:
    """The outer momentum of a round, from 1, on ``size`` nodes, after ``period`` steps of each: see above."""
    return 1 - 1 / min(math.sqrt(size), 1 + period / _STEPS_PER_GAIN, max(1.0, round / _ROUNDS_PER_GAIN))


class Outer:
    """A node's outer optimizer, with what it keeps. With ``momentum=None`` that of a round is ``ramped``."""

    def __init__(self, node: Node, *, lr: float, momentum: float | None = 0.0, period: int = 1) -> None:
        self._node, self._period = node, period
        self._lr, self._momentum = lr, momentum
        like = torch.zeros_like(trained(node.params, node))
        ever = momentum or (momentum is None and node.size > 1)
        self._velocity = node.keep("outer momentum", like) if ever else None

    def step(
        self, world: Tensor, change: Tensor, begin: int = 0, *, round: int = 1, since: Tensor | None = None
    ) -> None:
        """Move the global model by a mean change: all of it, or the part that begins somewhere.

        ``round`` counts the mean changes of this part, from 1. ``since`` are the statistics that it is the change of,
        where those of the global model have moved on.
        """
        part = world[begin : begin + change.numel()]
        self._move(trained(part, self._node, begin), trained(change, self._node, begin), begin, round)
        known = statistics(part, self._node, begin)
        torch.sub(known if since is None else since, statistics(change, self._node, begin), out=known)

    def _move(self, part: Tensor, change: Tensor, begin: int, round: int) -> None:
        if self._velocity is not None:
            momentum = ramped(round, self._node.size, self._period) if self._momentum is None else self._momentum
            velocity = self._velocity[begin : begin + change.numel()].mul_(momentum).add_(change)
            change = change + momentum * velocity
        part.sub_(change, alpha=self._lr)


class TorchOuter(Outer):
    """The same with a torch optimizer, one for each part of the model, whose state is kept."""

    def __init__(self, node: Node, make: OptimizerFactory, world: Tensor, edges: Sequence[int]) -> None:
        super().__init__(node, lr=1.0)
        ends = [min(edge, node.trained) for edge in edges]
        self._parts = {
            begin: _Stepper(node, make, world[begin:end], f"outer {begin}")
            for begin, end in pairwise(ends)
            if begin < end
        }

    def _move(self, part: Tensor, change: Tensor, begin: int, round: int) -> None:
        if change.numel():
            self._parts[begin].step(change)


class _Stepper:
    """A torch optimizer of one vector, whose state is among what a node keeps."""

    def __init__(self, node: Node, make: OptimizerFactory, part: Tensor, name: str) -> None:
        self._part, self._optimizer = part, make([part])
        # Optimizers make their state at the first step: one that moves nothing shows what there will be to keep.
        probe = torch.zeros_like(part)
        probe.grad = torch.zeros_like(part)
        trial = make([probe])
        trial.step()
        state = {key: value for key, value in trial.state[probe].items() if value is not None}
        if odd := [key for key, value in state.items() if not isinstance(value, Tensor)]:
            raise TypeError(f"outer: what {type(trial).__name__} keeps must be tensors, {odd[0]!r} is none")
        self._kept = {key: node.keep(f"{name} {key}", torch.zeros_like(value)) for key, value in state.items()}
        self._begun = node.keep(f"{name} begun", torch.zeros(1))
        if self._begun:
            self._optimizer.state[part].update(self._kept)

    def step(self, change: Tensor) -> None:
        """One step, with the change as gradient."""
        self._part.grad = change
        self._optimizer.step()
        self._part.grad = None
        state = self._optimizer.state[self._part]
        for key, kept in self._kept.items():
            if state[key] is not kept:
                state[key] = kept.copy_(state[key])
        self._begun.fill_(1.0)


@dataclass(frozen=True, kw_only=True)
class WithOuter:
    """What strategies with an outer step have: without arguments plain averages, with momentum as rounds go by.

    ``outer_lr=0.7, outer_momentum=0.9`` is what DiLoCo's authors take, for many rounds from a small inner rate.
    ``outer`` makes a torch optimizer in their stead, e.g. ``functools.partial(torch.optim.AdamW, lr=1e-3)``.
    """

    own_gradients: ClassVar[bool] = True

    period: int = 50
    outer_lr: float = 1.0
    outer_momentum: float | None = None
    outer: OptimizerFactory | None = None
    average: Average = Exact()

    def __post_init__(self) -> None:
        name = type(self).__name__
        check.whole(self, "period", self.period)
        check.positive(self, "outer_lr", self.outer_lr)
        momentum = self.outer_momentum
        if momentum is not None and check.fraction(self, "outer_momentum", momentum) >= 1:
            raise ValueError(f"{name}.outer_momentum must be below 1, got {momentum}")
        if self.outer is not None and (self.outer_lr != 1.0 or momentum is not None):
            raise ValueError(
                f"{name}.outer has a rate and a momentum of its own: leave outer_lr and outer_momentum out"
            )
        if self.outer is not None and not callable(self.outer):
            such = "functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)"
            raise TypeError(f"{name}.outer must make a torch optimizer, such as {such}, got {self.outer!r}")
        check.has(self, "average", self.average, "start", kind="an average such as Exact()")

    def start_outer(self, node: Node, world: Tensor, edges: Sequence[int] | None = None) -> Outer:
        """The outer optimizer of a node, for the whole model or for parts of it between ``edges``."""
        if self.outer is None:
            return Outer(node, lr=self.outer_lr, momentum=self.outer_momentum, period=self.period)
        return TorchOuter(node, self.outer, world, edges or [0, world.numel()])
