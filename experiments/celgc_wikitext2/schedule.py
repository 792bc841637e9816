"""A learning rate that comes down at the end, so that the last model is more than a snapshot of the noise."""

from __future__ import annotations

from torch import Tensor
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR


def decaying_sgd(parameters: list[Tensor], *, rate: float, steps: int, decay: float) -> SGD:
    """Plain SGD; over the last ``decay`` part of the steps the rate goes down to zero in a straight line.

    Gamma goes down with it, as in the authors' runs: ClipStep sees to that.
    """
    optimizer = SGD(parameters, lr=rate)
    if decay:
        schedule = LambdaLR(optimizer, lambda step: min(1.0, (steps - step) / (decay * steps)))
        optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer
