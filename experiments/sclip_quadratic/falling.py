"""A learning rate that falls with time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch

from flockstep.node import OptimizerFactory


class Falling(torch.optim.SGD):
    """SGD whose learning rate is a function of the step, from 0."""

    row_wise: ClassVar[bool] = True

    def __init__(self, params: Any, rate: Callable[[int], float]) -> None:
        super().__init__(params, lr=rate(0))
        self._rate, self._t = rate, 0

    def step(self, closure: Any = None) -> Any:
        """One step at the rate of its time."""
        self.param_groups[0]["lr"] = self._rate(self._t)
        self._t += 1
        return super().step(closure)


def harmonic(rate: float = 1.0) -> OptimizerFactory:
    """``2 rate / (t + 11)``."""
    return partial(Falling, rate=lambda t: 2 * rate / (t + 11))


def fifth_root(rate: float = 1.0) -> OptimizerFactory:
    """``rate / (t + 1)^(1/5)``: what SClip-EF does by itself."""
    return partial(Falling, rate=lambda t: rate * (t + 1) ** -0.2)
