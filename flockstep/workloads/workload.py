"""The contract of a workload."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor


@runtime_checkable
class Workload(Protocol):
    """A loss over data, as functions of one flat vector. Knows no nodes."""

    def start(self) -> Tensor:
        """The vector training starts from: a new one, and the same on every call."""

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """A stochastic gradient at ``x``: a new vector; ``x`` is left alone. ``rng`` draws the batch."""

    def loss(self, x: Tensor) -> float:
        """The number training is about: of the whole problem, whichever shard is asked."""

    def shard(self, rank: int, size: int) -> Workload:
        """The part that node ``rank`` of ``size`` trains on, safe to use in a thread of its own."""


def tensors_of(workload: Workload, v: Tensor) -> list[Tensor]:
    """The tensors of a workload's model in a vector like it: a workload that knows them has ``tensors(v)``."""
    known = getattr(workload, "tensors", None)
    return [v] if known is None else list(known(v))
