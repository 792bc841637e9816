"""Many local steps, then one outer step with momentum on the mean of what they changed.

State: W, the global model; x_i, which trains from it.

DiLoCo          change_i = W - x_i;      W <- Outer(W, mean_i change_i);      x_i <- W                   every H steps

EagerDiLoCo     the same without waiting: x_i goes on, and moves when the mean is there, one period late.
                    old_i = W - x_i, a period ago;      W' <- Outer(W, mean(old))
                    x_i <- x_i + (W' - W) + (old_i + mean(old)) / 2
                It keeps what it has learned meanwhile, and gives up half of what it stood apart. To give up all of it,
                as CoCoD does, is too much where the loss is stiff: what was apart a period ago has come back by itself,
                taken away once more it stands apart to the other side, a_r = (rho - 1) a_{r-1} + noise for nodes that
                keep rho of it over a period. Half gives rho - 1/2, and dies out for every rho. W is the same for all.
                With ``published=True`` as its authors have it: every node has a global model W_i, and
                    W_i <- Outer(W_i, mean(old) + (change_i - old_i) / n);      x_i <- W_i
                so that the W_i differ by a change / n. The first period has nothing of others: one's own stands for
                all. When the run ends, the W_i are averaged. x_i then lacks what others have just learned, learns it
                again, and W takes it twice: over hundreds of rounds that is little, in few of them it ends above the
                loss of one node alone, at every outer rate and momentum that we tried.
                Batch-norm statistics stay a node's own until the end.

Outer is by default a plain average whose momentum grows with the rounds up to what the number of nodes bears (see
``parts/outer_step.py``); the papers' is ``outer_lr=0.7, outer_momentum=0.9``; ``outer`` takes any torch optimizer.
A period that the end of the run cuts short is closed like any other. The inner optimizer is yours, AdamW in the papers.

Douillard et al.: DiLoCo, 2023, arXiv 2311.08105. Kale, Douillard, Donchev: eager updates for overlapped communication
and computation in DiLoCo, 2025, arXiv 2502.12996.

Sends   one change every ``period`` steps
Waits   for everybody, every ``period`` steps (EagerDiLoCo: for a mean that takes longer than a period)
Keeps   W and the outer momentum (EagerDiLoCo: and the change under way)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flockstep.node import Node
from flockstep.parts.outer_step import Outer, WithOuter
from flockstep.parts.statistics import statistics, trained


@dataclass(frozen=True, kw_only=True)
class DiLoCo(WithOuter):
    """DiLoCo: many local steps, then one outer step with momentum, which all nodes take together.

        change_i = W - x_i;      W <- Outer(W, mean_i change_i);      x_i <- W                   every ``period`` steps
        Outer:   m <- mu m + change;      W <- W - outer_lr * (change + mu m)

    W is the global model, x_i the one that node i trains with your optimizer (AdamW in the paper). Every node ends with
    the same model.

    Douillard et al.: DiLoCo, 2023, arXiv 2311.08105, which has ``outer_lr=0.7, outer_momentum=0.9``: for many rounds
    and a small inner learning rate.

    Args:
        period: Steps that a node takes between two exchanges.
        outer_lr: Rate of the outer step. 1, the default, goes to where the mean of all nodes is.
        outer_momentum: Momentum of the outer step, from 0 to below 1. None: 1 - 1/g in round r, from 1, on n nodes,
            with g = min(sqrt(n), 1 + period / 8, max(1, r / 5)), so that it grows from 0.
        outer: Makes the torch optimizer that takes the outer step, in place of ``outer_lr`` and ``outer_momentum``:
            ``functools.partial(torch.optim.AdamW, lr=1e-3)``. None: the rule above.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries changes.

    Example:
        with fs.join(model, optimizer, fs.DiLoCo(period=50)):
            train(model, optimizer)  # your own loop
    """

    async def run(self, node: Node) -> None:
        """Periods of local steps, each closed by an outer one."""
        x, mean = node.params, self.average.start(node, "change")
        W = node.keep("global", x.clone())
        outer = self.start_outer(node, W)
        async for round in node.rounds(self.period):
            async for _ in round:
                await node.step(await node.gradient(x))
            outer.step(W, await mean(W - x), round=round.number + 1)
            x.copy_(W)


@dataclass(frozen=True, kw_only=True)
class EagerDiLoCo(WithOuter):
    """DiLoCo without waiting: a node trains on while the mean change travels, and takes it in one period late.

        old_i = W - x_i, a period ago;      W' <- Outer(W, mean_j old_j)                         every ``period`` steps
        x_i <- x_i + (W' - W) + (old_i + mean_j old_j) / 2
        published:   W_i <- Outer(W_i, mean_j old_j + (change_i - old_i) / n);      x_i <- W_i

    W is the global model, x_i the one that node i trains, n the number of nodes, Outer that of ``DiLoCo``. Every node
    ends with the same model.

    Kale, Douillard, Donchev: eager updates for overlapped communication and computation in DiLoCo, 2025, arXiv
    2502.12996.

    Args:
        period: Steps that a node takes between two exchanges. A mean that takes longer is waited for.
        outer_lr: Rate of the outer step. 1, the default, goes to where the mean of all nodes was.
        outer_momentum: Momentum of the outer step, from 0 to below 1. None: 1 - 1/g in round r, from 1, on n nodes,
            with g = min(sqrt(n), 1 + period / 8, max(1, r / 5)), so that it grows from 0.
        outer: Makes the torch optimizer that takes the outer step, in place of ``outer_lr`` and ``outer_momentum``:
            ``functools.partial(torch.optim.AdamW, lr=1e-3)``. None: the rule of ``DiLoCo``.
        average: How the mean over all nodes is taken (see ``fs.averages``). By default exactly. It carries changes.
        published: True: the update as published. In runs of few rounds it ended above the loss of one node alone.

    Example:
        with fs.join(model, optimizer, fs.EagerDiLoCo(period=50)):
            train(model, optimizer)  # your own loop
    """

    published: bool = False

    async def run(self, node: Node) -> None:
        """Periods of local steps, while the mean change of the last one travels."""
        x, mean = node.params, self.average.start(node, "change")
        W, old = node.keep("global", x.clone()), node.keep("change under way", torch.zeros_like(x))
        outer, r = self.start_outer(node, W), node.step_count // self.period
        under_way = node.spawn(mean(old)) if r else None
        async for round in node.rounds(self.period):
            async for _ in round:
                await node.step(await node.gradient(x))
            r, late = round.number + 1, None if under_way is None else await under_way
            if self.published:
                self._merge_as_published(W, x, old, late, outer, r, node)
            else:
                if late is not None:
                    jump = trained(old + late, node) / 2 - trained(W, node)
                    outer.step(W, late, round=r - 1)
                    trained(x, node).add_(jump + trained(W, node))
                torch.sub(W, x, out=old)
            under_way = node.spawn(mean(old))
        if under_way is not None:
            late = await under_way
            if not self.published:
                outer.step(W, late, round=r)
        x.copy_(await node.mean(W, "end") if self.published else W)

    def _merge_as_published(
        self, W: Tensor, x: Tensor, old: Tensor, late: Tensor | None, outer: Outer, r: int, node: Node
    ) -> None:
        fresh = W - x
        eager = fresh if late is None else late.add_(fresh - old, alpha=1 / node.size)
        # Added late, others' changes could carry a variance below zero.
        statistics(eager, node).copy_(statistics(fresh, node))
        outer.step(W, eager, round=r)
        x.copy_(W)
        old.copy_(fresh)
