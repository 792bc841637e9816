"""Local steps, models averaged now and then.

LocalSGD      x_i <- x_i - eta * clip(g_i)                         every step
              x_i <- mean_j x_j                                    every ``period`` steps

CELGC         the same with the clip  min(eta, gamma/||g_i||) * g_i: gamma caps the step, by the node's own norm,
              so that ||x_i - xbar|| <= 2 gamma period without momentum. No gamma is one and a half times what steps
              usually are (``clips.UsualCap``).
              Liu, Zhuang, Lei, Liao: communication-efficient local gradient clipping, NeurIPS 2022, arXiv 2205.05040.

CELGCUpdate   caps the length of what the optimizer did, whatever it was: with momentum or Adam, clipping the gradient
              (CELGC, as its authors do) does not bound the step, clipping the update does.

Sends   one model per ``period`` steps
Waits   for every node, every ``period`` steps; once more at the end if a round was left open
Keeps   nothing; without a gamma, the mean length of steps
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from flockstep import check
from flockstep.averages.averages import Exact
from flockstep.clips import NoClip, UsualCap, capped
from flockstep.node import Node
from flockstep.parts.clip_thresholds import Threshold, looked
from flockstep.parts.suitability import MODELS, average_for
from flockstep.strategy import Average, Clip


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """Local SGD: every node steps alone, and models are averaged every ``period`` steps.

        x_i <- x_i - eta * clip(g_i)                               every step
        x_i <- mean_j x_j                                          every ``period`` steps, and at the end

    Every node ends with the same model.

    Stich: local SGD converges fast and communicates little, ICLR 2019, arXiv 1805.09767.

    Args:
        period: Steps that a node takes between two exchanges.
        clip: What bounds a gradient (see ``fs.clips``). By default nothing. It acts on every node's own gradient.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries models: not
            ``PowerSGD``, and none with ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.LocalSGD(period=8)):
            train(model, optimizer)  # your own loop
    """

    row_wise: ClassVar[bool] = True

    period: int
    clip: Clip = NoClip()
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        check.has(self, "clip", self.clip, "__call__", kind="a clip such as ClipNorm(max_norm=1.0)")
        average_for(self, self.average, MODELS)

    @property
    def own_gradients(self) -> bool:
        """Nobody looks at a gradient that is not clipped."""
        return isinstance(self.clip, NoClip)

    async def run(self, node: Node) -> None:
        """Compute, clip, step; average at the end of each round."""
        x, mean = node.params, self.average.start(node)
        async for round in node.rounds(self.period):
            async for _ in round:
                await node.step(self.clip(await node.gradient(x), node))
            x.copy_(await mean(x))


@dataclass(frozen=True, kw_only=True)
class CELGC:
    """CELGC: local steps no longer than ``gamma``, by each node's own gradient; models averaged every ``period`` steps.

        x_i <- x_i - min(eta, gamma / ||g_i||) * g_i               every step
        x_i <- mean_j x_j                                          every ``period`` steps, and at the end

    With momentum or Adam the step itself is not bounded, as only the gradient is clipped: see ``CELGCUpdate``. Every
    node ends with the same model.

    Liu, Zhuang, Lei, Liao: communication-efficient local gradient clipping, NeurIPS 2022, arXiv 2205.05040.

    Args:
        period: Steps that a node takes between two exchanges.
        gamma: Longest step, as a distance in parameter space. It is that of a plain SGD step, eta * ||g_i||, and
            shrinks as a schedule lowers the learning rate. None: 1.5 times the usual length of this node's steps.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries models: not
            ``PowerSGD``, and none with ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.CELGC(period=8)):
            train(model, optimizer)  # your own loop
    """

    row_wise: ClassVar[bool] = True

    period: int
    gamma: float | None = None
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        if self.gamma is not None:
            check.positive(self, "gamma", self.gamma)
        average_for(self, self.average, MODELS)

    async def run(self, node: Node) -> None:
        """Local SGD with the step capped: nothing else."""
        gamma = UsualCap(node) if self.gamma is None else self.gamma

        def clip(g: Tensor, node: Node) -> Tensor | None:
            return capped(gamma, g, node, self)

        await LocalSGD(period=self.period, clip=clip, average=self.average).run(node)


@dataclass(frozen=True, kw_only=True)
class CELGCUpdate(CELGC):
    """CELGC that caps what the optimizer did, whichever it is, and not the gradient it was given.

        d = what the optimizer adds to x_i;   x_i <- x_i + min(1, gamma / ||d||) * d               every step
        x_i <- mean_j x_j                                          every ``period`` steps, and at the end

    A variant of CELGC (Liu, Zhuang, Lei, Liao, NeurIPS 2022, arXiv 2205.05040) for momentum and Adam. Every node ends
    with the same model.

    Args:
        period: Steps that a node takes between two exchanges.
        gamma: Longest step, as a distance in parameter space. It must be given, and shrinks as a schedule lowers the
            learning rate.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries models: not
            ``PowerSGD``, and none with ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.CELGCUpdate(period=8, gamma=0.5)):
            train(model, optimizer)  # your own loop
    """

    own_gradients: ClassVar[bool] = True

    # To be given: what an adaptive optimizer's steps usually are is not known from its first ones.
    gamma: float = field()

    async def run(self, node: Node) -> None:
        """Let the optimizer step, then shorten what it did."""
        x, mean = node.params, self.average.start(node)
        async for round in node.rounds(self.period):
            async for _ in round:
                g = await node.gradient(x)
                before = x.clone()
                await node.step(g)
                self._shorten(x, before, node)
            x.copy_(await mean(x))

    def _shorten(self, x: Tensor, before: Tensor, node: Node) -> None:
        # By the first group that learns at all: one that began with a rate of 0 tells nothing of a schedule.
        decay = next((rate / initial for rate, initial in node.learning_rates() if initial), 1.0)
        change, cap = x - before, self.gamma * decay
        length = float(node.length(change))
        if not math.isfinite(length):
            x.copy_(before)
            return
        looked(node, Threshold(self, "gamma", "steps"), length, length > cap)
        if length > cap:
            node.count("clipped")
            x.copy_(before + change * (cap / length))
