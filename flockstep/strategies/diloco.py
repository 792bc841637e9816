"""Many local steps, then one outer step with momentum on the mean of what they changed.

State: W, the global model; x_i, which trains from it.

DiLoCo          change_i = W - x_i;      W <- Nesterov(W, mean_i change_i);      x_i <- W                every H steps

EagerDiLoCo     the same without waiting: the mean of others' changes is one period old, one's own part of it is fresh,
                    W_i <- Nesterov(W_i, mean(old) + (change_i - old_i) / n)
                so that the W_i differ by a fresh change / n. The first period has nothing of others: one's own stands
                for all. Batch-norm statistics stay a node's own. When the run ends, the W_i are averaged.

A period that the end of the run cuts short is closed like any other. The inner optimizer is yours, AdamW in the papers.

Douillard et al.: DiLoCo, 2023, arXiv 2311.08105. Kale, Douillard, Donchev: eager updates for overlapped communication
and computation in DiLoCo, 2025, arXiv 2502.12996.

Sends   one change every ``period`` steps
Waits   for everybody, every ``period`` steps (EagerDiLoCo: for a mean that takes longer than a period)
Keeps   W and the outer momentum (EagerDiLoCo: and the change under way)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flockstep import check
from flockstep.node import Node, Pending
from flockstep.parts.averages import Exact
from flockstep.parts.outer import Outer
from flockstep.strategy import Average


@dataclass(frozen=True, kw_only=True)
class _Outer:
    """What both have."""

    own_gradients: ClassVar[bool] = True

    period: int = 50
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    average: Average = Exact()

    def __post_init__(self) -> None:
        check.whole(self, "period", self.period)
        check.positive(self, "outer_lr", self.outer_lr)
        if check.fraction(self, "outer_momentum", self.outer_momentum) >= 1:
            raise ValueError(f"{type(self).__name__}.outer_momentum must be below 1, got {self.outer_momentum}")
        check.has(self, "average", self.average, "start", kind="an average such as Exact()")


@dataclass(frozen=True, kw_only=True)
class DiLoCo(_Outer):
    """Step alone for long, then take one outer step together."""

    async def run(self, node: Node) -> None:
        """Periods of local steps, each closed by an outer one."""
        x, mean = node.params, self.average.start(node, "change")
        world = node.keep("global", x.clone())
        outer = Outer(node, lr=self.outer_lr, momentum=self.outer_momentum)
        k = node.step_count - 1
        async for k in node.steps():
            await node.step(await node.gradient(x))
            if (k + 1) % self.period == 0:
                outer.step(world, await mean(world - x))
                x.copy_(world)
        if (k + 1) % self.period:
            outer.step(world, await mean(world - x))
            x.copy_(world)


@dataclass(frozen=True, kw_only=True)
class EagerDiLoCo(_Outer):
    """Take the outer step at once, with what the others changed a period ago."""

    async def run(self, node: Node) -> None:
        """Periods of local steps, each closed by an outer one, while its mean travels in the next."""
        x, mean = node.params, self.average.start(node, "change")
        world, old = node.keep("global", x.clone()), node.keep("change under way", torch.zeros_like(x))
        outer = Outer(node, lr=self.outer_lr, momentum=self.outer_momentum)

        async def close_period(pending: Pending[Tensor] | None) -> Pending[Tensor]:
            fresh = world - x
            eager = fresh if pending is None else (await pending).add_(fresh - old, alpha=1 / node.size)
            # Added late, others' changes could carry a variance below zero.
            eager[node.trained :] = fresh[node.trained :]
            outer.step(world, eager)
            x.copy_(world)
            old.copy_(fresh)
            return node.spawn(mean(old))

        pending = node.spawn(mean(old)) if node.step_count >= self.period else None
        k = node.step_count - 1
        async for k in node.steps():
            await node.step(await node.gradient(x))
            if (k + 1) % self.period == 0:
                pending = await close_period(pending)
        if (k + 1) % self.period:
            pending = await close_period(pending)
        if pending is not None:
            await pending
        x.copy_(await node.mean(world, "end"))
