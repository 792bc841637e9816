"""A situation: a model, its optimizers and a loop, in the user's words and by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Setting:
    """What a user has before the loop begins."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    loss: Callable[[nn.Module, int, int], Tensor]
    """Of the model, in an iteration, on a node."""
    statistics: tuple[str, ...] = ()
    """The buffers that are to be averaged."""
    scheduler: Any = None
    also: dict[str, Any] = field(default_factory=dict)
    """Whatever else the loop needs."""


def backward(setting: Setting, k: int, rank: int) -> None:
    """The gradients of one iteration."""
    for optimizer in setting.optimizers:
        optimizer.zero_grad()
    setting.loss(setting.model, k, rank).backward()  # type: ignore[no-untyped-call]


def update(setting: Setting, k: int, rank: int) -> None:
    """The step of one iteration."""
    for optimizer in setting.optimizers:
        optimizer.step()


def loop(setting: Setting, k: int, rank: int) -> None:
    """One iteration as most users write it."""
    backward(setting, k, rank)
    update(setting, k, rank)


@dataclass(frozen=True)
class Situation:
    """One thing that happens in users' loops.

    It is trained right, which is to say as ``backward`` and ``update`` do by hand, or it is refused by the sentence
    that ``refused`` holds, or gives for a strategy and a number of nodes (empty where it is not).
    """

    name: str
    make: Callable[[], Setting]
    loop: Callable[[Setting, int, int], None] = loop
    backward: Callable[[Setting, int, int], None] = backward
    update: Callable[[Setting, int, int], None] = update
    refused: str | Callable[[object, int], str] = ""
    tolerance: float = 1e-9
    process_wide: bool = False
    """Whether the loop draws torch's own random numbers, which threads of a process share."""
    needs: Callable[[], str] = lambda: ""
    """What is missing here for it, in words."""

    def refusal(self, strategy: object, nodes: int) -> str:
        """The sentence it is refused with; empty if it must train."""
        return self.refused if isinstance(self.refused, str) else self.refused(strategy, nodes)


def batch(k: int, rank: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers for one iteration on one node."""
    generator = torch.Generator().manual_seed(1000 * rank + k)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def fit(model: nn.Module, k: int, rank: int) -> Tensor:
    """The loss of a model of four numbers to one, in the dtype of its parameters."""
    dtype = next(model.parameters()).dtype
    x = batch(k, rank, 8, 4, dtype=dtype)
    return nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))


def small(*layers: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A small net; with layers of one's own between the first and the last."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *layers, nn.Linear(6, 1)).to(dtype)


def sgd(model: nn.Module, lr: float = 0.05, **options: Any) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def setting(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    loss: Callable[[Any, int, int], Tensor] = fit,
    statistics: tuple[str, ...] = (),
    **also: Any,
) -> Setting:
    """A setting, with plain SGD unless there is another optimizer."""
    given = [sgd(model)] if optimizer is None else optimizer
    optimizers = [given] if isinstance(given, torch.optim.Optimizer) else list(given)
    return Setting(model, optimizers, loss, statistics, also=also)
