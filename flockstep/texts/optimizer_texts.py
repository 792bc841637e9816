"""The optimizers a node can step with, by name; all are torch's own."""

from __future__ import annotations

from enum import StrEnum
from functools import partial

import torch

from flockstep.node import OptimizerFactory


class OptimizerName(StrEnum):
    """What can be asked for."""

    sgd = "sgd"
    momentum = "momentum"
    adamw = "adamw"

    def factory(self, lr: float) -> OptimizerFactory:
        """What makes such an optimizer for a node."""
        if self is OptimizerName.adamw:
            return partial(torch.optim.AdamW, lr=lr)
        return partial(torch.optim.SGD, lr=lr, momentum=0.9 if self is OptimizerName.momentum else 0.0)

    def describe(self, lr: float) -> str:
        """As one would write it."""
        name = "AdamW" if self is OptimizerName.adamw else "SGD"
        return f"{name}(lr={lr:g}{', momentum=0.9' if self is OptimizerName.momentum else ''})"
