"""The contract of a workload."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@runtime_checkable
class Workload(Protocol):
    """What a workload is: a loss over data, as functions of one flat vector. It knows no nodes.

    Workloads for a start are in ``flockstep.workloads``.

    Example:
        from flockstep.workloads.convex import Quadratics

        trace = fs.simulate(fs.LocalSGD(period=8), Quadratics(dim=100), nodes=4)
    """

    def start(self) -> Tensor:
        """The vector training starts from: a new one, and the same on every call."""

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """A stochastic gradient at ``x``: a new vector; ``x`` is left alone. ``rng`` draws the batch."""

    def loss(self, x: Tensor) -> float:
        """The number training is about: of the whole problem, whichever shard is asked."""

    def shard(self, rank: int, size: int) -> Workload:
        """The part that node ``rank`` of ``size`` trains on, safe to use in a thread of its own."""


class Stacked(Protocol):
    """All shards of a workload side by side: the gradients of all nodes, and of many runs, in one call."""

    def draw(self, rank: int, rng: np.random.Generator, steps: int) -> tuple[NDArray[Any], ...]:
        """What the next ``steps`` gradients of a node draw, as ``gradient`` of its shard would: arrays of (steps, ...).

        No arrays at all mean that the gradients are exact.
        """

    def gradient(self, x: Tensor, drawn: tuple[NDArray[Any], ...]) -> Tensor:
        """At ``x`` (runs, nodes, dim), with what was drawn, (runs, nodes, ...): a new tensor like ``x``.

        NumPy may warn of a diverged ``x``; whoever runs many steps silences it once for all of them.
        """


def tensors_of(workload: Workload, v: Tensor) -> list[Tensor]:
    """The tensors of a workload's model in a vector like it: a workload that knows them has ``tensors(v)``."""
    known = getattr(workload, "tensors", None)
    return [v] if known is None else list(known(v))


def tell_progress(workload: Workload, share: float) -> None:
    """What share of the run is over, before a gradient: a workload that wants to know has an attribute ``progress``."""
    if hasattr(workload, "progress"):
        workload.progress = share


def stacked(workload: Workload, size: int) -> Stacked | None:
    """All ``size`` shards of a workload side by side: one that can do this has ``stack(size)``, else None.

    A subclass that changes what a gradient is must say anew how to stack it.
    """
    stack = method_of(workload, "stack", {"start", "gradient", "shard"})
    together: Stacked | None = None if stack is None else stack(size)
    return together


def method_of(workload: Workload, name: str, beside: set[str]) -> Any:
    """A method that some workloads have; None where there is none, or where a subclass has since changed others.

    What does the work of ``beside`` in another way would not know of the change.
    """
    for kind in type(workload).__mro__:
        if name in vars(kind):
            return getattr(workload, name)
        if not beside.isdisjoint(vars(kind)):
            break
    return None
