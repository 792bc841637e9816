"""GradScaler skips ``optimizer.step`` when a gradient is not finite, and no hook tells of it. This does.

A step that one node skips and others take must still be a step of the strategy, or every later exchange would meet the
wrong partner. While a loop is joined, ``GradScaler.step`` is watched: attempts are counted, and gradients are unscaled
before the strategy sees them, fused optimizers included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp import GradScaler

_watched: dict[int, Callable[[GradScaler, Callable[[], Any]], Any]] = {}
_original = GradScaler.step


def _step(self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
    def plain() -> Any:
        return _original(self, optimizer, *args, **kwargs)

    watcher = _watched.get(id(optimizer))
    return plain() if watcher is None or not self.is_enabled() else watcher(self, plain)


@contextmanager
def watching(
    optimizer: torch.optim.Optimizer, watcher: Callable[[GradScaler, Callable[[], Any]], Any]
) -> Iterator[None]:
    """Let ``watcher(scaler, step)`` stand around every scaled step of one optimizer."""
    _watched[id(optimizer)] = watcher
    GradScaler.step = _step  # type: ignore[method-assign]
    try:
        yield
    finally:
        del _watched[id(optimizer)]
        if not _watched:
            GradScaler.step = _original  # type: ignore[method-assign]


def is_unscaled(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the user has called ``scaler.unscale_(optimizer)`` in this iteration."""
    stage = scaler._per_optimizer_states[id(optimizer)]["stage"]
    return bool(stage.name != "READY")
