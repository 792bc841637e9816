"""Local steps whose models are averaged in the background, and two ways to take a mean in that comes late.

CoCoD           s_i, a snapshot of x_i, is averaged while x_i takes k steps; then nothing that was learned is undone:
                    x_i <- x_i + pull * (mean(s) - s_i)
                With ``pull=1``, the paper's form, a node gives up all that it stood apart a period ago. Where the loss
                is stiff that is too much: over the period most of it went by itself, taken away once more it stands
                apart to the other side, a_r = (rho - pull) a_{r-1} + noise for nodes that keep rho of it. Half dies
                out for every rho from 0 to 1, and is the default.

OverlapLocalSGD the same with an anchor z in place of the mean, which follows the means with a momentum beta:
                    v <- beta v + (mean(s) - z);      z <- z + v
                    x_i <- x_i + pull * (z - s_i)                               every k steps
                With ``published=True``, the paper's form, x_i <- x_i + pull * (z - x_i): nodes are pulled back to an
                anchor that is a period old, and so lose steps. With its ``pull=0.6, anchor_momentum=0.7`` they get on
                at two thirds of the pace (0.4 / (1 - 0.6 * 0.7) of it), and ended above one node alone in three of four
                ordinary trainings.

When the run ends, models are averaged once more, in full view: all leave with the same one.

Shen, Gao, Wang, Xie, Zhang: computation and communication decoupled SGD, IJCAI 2019, arXiv 1906.12043.
Wang, Liang, Joshi: overlap local-SGD, ICASSP 2020, arXiv 2002.09539.

Sends   one model per period, in the background
Waits   for a mean that takes longer than its period
Keeps   the snapshot; OverlapLocalSGD also the anchor and its velocity
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.averages.averages import Exact
from flockstep.node import Node, Pending
from flockstep.parts.statistics import statistics
from flockstep.parts.suitability import MODELS, average_for
from flockstep.strategy import Average


@dataclass(frozen=True, kw_only=True)
class CoCoD:
    """CoCoD: local steps, while a snapshot of every node's model is averaged in the background.

        x_i <- x_i + pull * (mean_j s_j - s_i);      s_i <- x_i            every ``period`` steps

    s_i is the model of node i at the last exchange, so that what it has learned since is kept. When the run ends,
    models are averaged once more: every node ends with the same one.

    Shen, Gao, Wang, Xie, Zhang: computation and communication decoupled SGD, IJCAI 2019, arXiv 1906.12043, which has
    ``pull=1``.

    Args:
        period: Steps that a node takes between two exchanges. A mean that takes longer is waited for.
        pull: Share of its distance to the mean, above 0 and at most 1, that a node gives up at an exchange. 1 is the
            paper's and may swing where the loss is stiff; 0.5, the default, does not.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries models: not
            ``PowerSGD``, and none with ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.CoCoD(period=8)):
            train(model, optimizer)  # your own loop
    """

    own_gradients: ClassVar[bool] = True

    period: int = 8
    pull: float = 0.5
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        check.fraction(self, "pull", check.positive(self, "pull", self.pull))
        average_for(self, self.average, MODELS)

    async def run(self, node: Node) -> None:
        """Periods of local steps, each with the mean of where it began behind it."""
        x, mean = node.params, self.average.start(node)
        s = node.keep("snapshot", x.clone())
        pending: Pending[Tensor] = node.spawn(mean(s))
        async for k in node.steps():
            await node.step(await node.gradient(x))
            if (k + 1) % self.period == 0:
                x.add_(await pending - _then(s, x, node), alpha=self.pull)
                s.copy_(x)
                pending = node.spawn(mean(s))
        x.add_(await pending - _then(s, x, node), alpha=self.pull)
        x.copy_(await mean(x))


@dataclass(frozen=True, kw_only=True)
class OverlapLocalSGD:
    """Overlap-Local-SGD: as CoCoD, but nodes are pulled to an anchor that follows the means with momentum.

        v <- beta v + (mean_j s_j - z);      z <- z + v                    every ``period`` steps
        x_i <- x_i + pull * (z - s_i);       s_i <- x_i                    published:  x_i <- x_i + pull * (z - x_i)

    s_i is the model of node i at the last exchange, z the anchor, v its velocity, beta ``anchor_momentum``. When the
    run ends, models are averaged once more: every node ends with the same one.

    Wang, Liang, Joshi: overlap local-SGD, ICASSP 2020, arXiv 2002.09539, which has ``published=True, pull=0.6,
    anchor_momentum=0.7``.

    Args:
        period: Steps that a node takes between two exchanges. A mean that takes longer is waited for.
        pull: Share of its distance to the anchor, from 0 to 1, that a node gives up at an exchange.
        anchor_momentum: beta, from 0 to below 1.
        published: True: the update as published. It also takes back a part of what a node has learned since the last
            exchange.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries models: not
            ``PowerSGD``, and none with ``TopK``.

    Example:
        with fs.join(model, optimizer, fs.OverlapLocalSGD(period=8)):
            train(model, optimizer)  # your own loop
    """

    own_gradients: ClassVar[bool] = True

    period: int = 8
    pull: float = 0.5
    anchor_momentum: float = 0.3
    published: bool = False
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
        z, v = node.keep("anchor", x.clone()), node.keep("velocity", torch.zeros_like(x))
        s = node.keep("snapshot", x.clone())
        pending: Pending[Tensor] = node.spawn(mean(s))
        async for k in node.steps():
            await node.step(await node.gradient(x))
            if (k + 1) % self.period == 0:
                v.mul_(self.anchor_momentum)
                # Momentum could carry a variance below zero: statistics have none.
                statistics(v, node).zero_()
                v.add_(await pending - z)
                z.add_(v)
                x.add_(z - (x if self.published else _then(s, x, node)), alpha=self.pull)
                s.copy_(x)
                pending = node.spawn(mean(s))
        await pending
        x.copy_(await mean(x))


def _then(s: Tensor, x: Tensor, node: Node) -> Tensor:
    """The snapshot, with statistics of now: added to them, what they differed by then could bring a variance below
    zero."""
    statistics(s, node).copy_(statistics(x, node))
    return s
