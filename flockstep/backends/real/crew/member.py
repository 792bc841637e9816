"""One member of a crew: it steps on the shared vector, and all else that it needs is its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.errors import NodeFailed
from flockstep.node import OptimizerFactory, stream
from flockstep.optimizers import is_plain_sgd
from flockstep.workloads.workload import Workload, method_of

Descend = Callable[[Tensor, np.random.Generator, int, float], None]
"""``descend(x, rng, steps, rate)``: plain gradient steps in the memory of ``x``."""


class Member:
    """Takes steps on ``params``, which others change meanwhile.

    Its tensor is another one on the same memory, so that the gradient on it is its own; so are the optimizer, with its
    state, and the random numbers. Where a workload takes plain gradient steps by itself, it is left to do so.
    """

    def __init__(
        self, workload: Workload, params: Tensor, optimizer: OptimizerFactory, *, seed: int, rank: int, number: int
    ) -> None:
        self._workload, self._x = workload, params.detach()
        self._optimizer = optimizer([self._x])
        self._rng = stream(seed, rank, "data", number)
        self._descend = descent(workload, self._optimizer)

    def take(self, steps: int) -> None:
        """So many steps, each with a gradient at what the vector is then."""
        if self._descend is not None:
            self._descend(self._x, self._rng, steps, float(self._optimizer.param_groups[0]["lr"]))
            return
        for _ in range(steps):
            self._x.grad = self._workload.gradient(self._x, self._rng)
            self._optimizer.step()
        self._x.grad = None


def descent(workload: Workload, optimizer: torch.optim.Optimizer) -> Descend | None:
    """The workload's own steps, where it has them and the optimizer asks for nothing else.

    A subclass that changes what a gradient is must say anew how to descend.
    """
    return method_of(workload, "descend", {"gradient"}) if is_plain_sgd(optimizer) else None


def beside(workload: Workload) -> Workload:
    """A copy that can be used at the same time; a module's data is shared and its buffers are not."""
    # Asked of the class: a workload around another one passes on what it does not have.
    with_own_shell = getattr(type(workload), "with_own_shell", None)
    twin: Workload = copy.deepcopy(workload) if with_own_shell is None else with_own_shell(workload)
    return twin


def orders(steps: Sequence[int], members: int) -> dict[int, int]:
    """How many steps each member takes who takes any."""
    if not members:
        raise RuntimeError("this crew is closed")
    if len(steps) != members:
        raise ValueError(f"Crew.steps must have one number for each of the {members} members, got {list(steps)}")
    return {i: count for i, s in enumerate(steps) if (count := check.whole("Crew", "steps", s, at_least=0))}


def failed(rank: int, number: int, what: str) -> NodeFailed:
    """What is raised where a crew is put to work and a member cannot."""
    return NodeFailed(f"node {rank}: member {number} of its crew {what}", rank=rank)
