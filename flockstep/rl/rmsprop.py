"""RMSprop as TensorFlow has it, which actor-critic methods were tuned with.

    s <- decay s + (1 - decay) g^2,  s = 1 at the start;      x <- x - lr g / sqrt(s + eps)

torch's own adds eps outside the root and starts at 0: whatever the gradient, its first steps are ten learning rates
long in every coordinate, and some runs do not recover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

from flockstep import check


class RMSpropTF(torch.optim.Optimizer):
    """RMSprop as TensorFlow has it, which actor-critic methods were tuned with; a torch optimizer.

        s <- decay s + (1 - decay) g^2,  s = 1 at the start;      x <- x - lr g / sqrt(s + eps)

    ``state[p]["square_avg"]`` is s. Several optimizers may share it, which then write it without a lock.

    Tieleman, Hinton: lecture 6.5, rmsprop, 2012.

    Args:
        params: Parameters, or parameter groups, as for every torch optimizer.
        lr: Learning rate, 0 or more.
        decay: How much of s stays at a step, from 0 to 1.
        eps: What is added to s inside the root, above 0.

    Example:
        optimizer = RMSpropTF(model.parameters(), lr=7e-4)
    """

    row_wise = True

    def __init__(self, params: Iterable[Any], lr: float = 7e-4, decay: float = 0.99, eps: float = 1e-5) -> None:
        check.not_negative(self, "lr", lr)
        check.fraction(self, "decay", decay)
        check.positive(self, "eps", eps)
        super().__init__(params, {"lr": lr, "decay": decay, "eps": eps})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step; parameters without a gradient stay."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            decay = group["decay"]
            for p in group["params"]:
                if p.grad is not None:
                    square = self.square_avg(p)
                    square.mul_(decay).addcmul_(p.grad, p.grad, value=1 - decay)
                    p.addcdiv_(p.grad, (square + group["eps"]).sqrt_(), value=-group["lr"])
        return loss

    def square_avg(self, p: Tensor) -> Tensor:
        """The running mean of a parameter's squared gradient."""
        state = self.state[p]
        if not state:
            state["square_avg"] = torch.ones_like(p, memory_format=torch.preserve_format)
        square: Tensor = state["square_avg"]
        return square
