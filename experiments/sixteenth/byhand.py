"""Local steps and plain means, written by hand: what no strategy of ours does, to see whether one should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.defaults.runs import PERIOD, Job, begun, came_of, gradients


@dataclass(frozen=True)
class ByHand:
    """When models are averaged, and with which of the optimizer's moments."""

    due: Callable[[int, int], bool]
    """After this step, from 1, of so many?"""
    moments: tuple[str, ...] = ()

    def run(self, job: Job) -> dict[str, Any]:
        """All nodes in turn, step by step; what came of it."""
        torch.set_num_threads(1)
        nodes = [begun(job) for _ in range(job.nodes)]
        rngs = [np.random.default_rng((job.seed, rank)) for rank in range(job.nodes)]
        models, sent = [model for model, _, _ in nodes], 0
        for step in range(1, job.steps + 1):
            for (model, optimizer, schedule), rng in zip(nodes, rngs, strict=True):
                gradients(job, model, rng)
                optimizer.step()
                schedule.step()
            if step == job.steps or self.due(step, job.steps):
                sent += sum(_averaged(tensors) for tensors in zip(*map(_weights, models), strict=True))
                kept = [_moments(optimizer, self.moments) for _, optimizer, _ in nodes]
                sent += sum(_averaged(tensors) for tensors in zip(*kept, strict=True))
        return came_of(job, [model.state_dict() for model in models], sent)


def _weights(model: nn.Module) -> list[Tensor]:
    return [value for value in model.state_dict().values() if value.is_floating_point()]


def _moments(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> list[Tensor]:
    return [state[name] for state in optimizer.state.values() for name in names if name in state]


@torch.no_grad()
def _averaged(tensors: Sequence[Tensor]) -> int:
    """Make each of them their mean; the bytes that every node sends for it in a ring of chunks."""
    mean = torch.stack(list(tensors)).mean(0)
    for tensor in tensors:
        tensor.copy_(mean)
    return 2 * (len(tensors) - 1) * mean.numel() * mean.element_size() // len(tensors)


def regularly(step: int, steps: int) -> bool:
    """Every 16 steps."""
    return step % PERIOD == 0


def often_at_first(step: int, steps: int) -> bool:
    """As many times in all: every 8 steps in the first third, then every 32."""
    return step % (PERIOD // 2 if step <= steps // 3 else 2 * PERIOD) == 0


def rarely_at_first(step: int, steps: int) -> bool:
    """The other way round: every 32 steps in the first two thirds, then every 8."""
    return step % (2 * PERIOD if step <= steps - steps // 3 else PERIOD // 2) == 0
