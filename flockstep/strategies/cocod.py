"""Local steps whose models are averaged in the background, and two ways to take a mean in that comes late.

CoCoD           s_i, a snapshot of x_i, is averaged while x_i takes k steps; then nothing that was learned is undone:
                    x_i <- x_i + pull * (mean(s) - s_i)
                With ``pull=1``, the paper's form, a node gives up all that it stood apart a period ago. Where the loss
                is stiff that is too much: over the period most of it went by itself, taken away once more it stands
                apart to the other side, a_r = (rho - pull) a_{r-1} + noise for nodes that keep rho of it. Half dies
                out for every rho from 0 to 1, and is the default.

OverlapLocalSGD nodes are pulled towards an anchor z, the same on all nodes, which is a mean that is one period old:
                    x_i <- x_i - pull * (x_i - z)                               every k steps
                    v <- beta v + (mean(x) - z);      z <- z + v                with the mean of what was pulled then

When the run ends, models are averaged once more, in full view: all leave with the same one.

Shen, Gao, Wang, Xie, Zhang: computation and communication decoupled SGD, IJCAI 2019, arXiv 1906.12043.
Wang, Liang, Joshi: overlap local-SGD, ICASSP 2020, arXiv 2002.09539.

Sends   one model per period, in the background
Waits   for a mean that takes longer than its period
Keeps   the snapshot (CoCoD); the anchor, its velocity and the model under way (OverlapLocalSGD)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.node import Node, Pending
from flockstep.parts.averages import Exact
from flockstep.parts.suited import MODELS, average_for
from flockstep.strategy import Average


@dataclass(frozen=True, kw_only=True)
class CoCoD:
    """Average a snapshot while you train on, and keep what you have learned since."""

    own_gradients: ClassVar[bool] = True

    period: int = 8
    pull: float = 0.5
    """How much of what it stood apart a node gives up when the mean is there; 1: all of it, as the paper has it."""
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        check.fraction(self, "pull", check.positive(self, "pull", self.pull))
        average_for(self, self.average, MODELS)

    async def run(self, node: Node) -> None:
        """Periods of local steps, each with the mean of where it began behind it."""
        x, mean = node.params, self.average.start(node)
        snapshot = node.keep("snapshot", x.clone())
        pending: Pending[Tensor] = node.spawn(mean(snapshot))
        k = node.step_count - 1
        async for k in node.steps():
            await node.step(await node.gradient(x))
            if (k + 1) % self.period == 0:
                x.add_(await pending - snapshot, alpha=self.pull)
                snapshot.copy_(x)
                pending = node.spawn(mean(snapshot))
        x.add_(await pending - snapshot, alpha=self.pull)
        x.copy_(await mean(x))


@dataclass(frozen=True, kw_only=True)
class OverlapLocalSGD:
    """Be pulled towards where everybody was a period ago."""

    own_gradients: ClassVar[bool] = True

    period: int = 8
    pull: float = 0.6
    anchor_momentum: float = 0.7
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        check.fraction(self, "pull", self.pull)
        if check.fraction(self, "anchor_momentum", self.anchor_momentum) >= 1:
            raise ValueError(f"OverlapLocalSGD.anchor_momentum must be below 1, got {self.anchor_momentum}")
        average_for(self, self.average, MODELS)

    async def run(self, node: Node) -> None:
        """Local steps and a pull; the anchor follows in the background."""
        x, mean = node.params, self.average.start(node)
        anchor, velocity = node.keep("anchor", x.clone()), node.keep("velocity", torch.zeros_like(x))
        pulled = node.keep("pulled", x.clone())
        pending: Pending[Tensor] = node.spawn(mean(pulled))
        k = node.step_count - 1
        async for k in node.steps():
            await node.step(await node.gradient(x))
            if (k + 1) % self.period == 0:
                velocity.mul_(self.anchor_momentum)
                # Momentum could carry a variance below zero: statistics have none.
                velocity[node.trained :] = 0
                velocity.add_(await pending - anchor)
                anchor.add_(velocity)
                x.sub_(x - anchor, alpha=self.pull)
                pulled.copy_(x)
                pending = node.spawn(mean(pulled))
        await pending
        x.copy_(await mean(x))
