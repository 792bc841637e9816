"""The outer step: what the global model makes of the mean change that nodes bring.

    W <- W - lr * change                                                        plain
    m <- mu m + change;      W <- W - lr * (change + mu m)                      Nesterov's momentum, as torch has it

Float buffers (batch-norm statistics) are part of a model but are not trained: they become the nodes' mean, whatever the
outer rate is. Momentum could carry a variance below zero, and so could changes that are added a period late.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flockstep.node import Node


class Outer:
    """A node's outer optimizer, with what it keeps."""

    def __init__(self, node: Node, *, lr: float, momentum: float = 0.0) -> None:
        self._trained, self._lr, self._momentum = node.trained, lr, momentum
        like = torch.zeros_like(node.params[: node.trained])
        self._velocity = node.keep("outer momentum", like) if momentum else None

    def statistics(self, world: Tensor) -> Tensor:
        """The part of a model that is not trained."""
        return world[self._trained :]

    def step(self, world: Tensor, change: Tensor, begin: int = 0, since: Tensor | None = None) -> None:
        """Move the global model by a mean change: all of it, or the part that begins somewhere.

        ``since`` are the statistics that it is the change of, where those of the global model have moved on.
        """
        trained, count = min(max(self._trained - begin, 0), change.numel()), change.numel()
        step = change[:trained]
        if self._velocity is not None:
            velocity = self._velocity[begin : begin + trained].mul_(self._momentum).add_(step)
            step = step + self._momentum * velocity
        world[begin : begin + trained].sub_(step, alpha=self._lr)
        statistics = world[begin + trained : begin + count]
        torch.sub(statistics if since is None else since, change[trained:], out=statistics)
