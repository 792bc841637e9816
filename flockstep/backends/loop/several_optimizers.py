"""Several optimizers of one model, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class SeveralOptimizers:
    """What a strategy and a checkpoint ask of an optimizer, asked of all of them."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Everybody's groups."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everybody's state, in their order."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give everybody theirs back."""
        saved = state.get("optimizers", [])
        if len(saved) != len(self.optimizers):
            raise ValueError(
                f"this checkpoint is of {len(saved) or 1} optimizer(s), join.optimizer has {len(self.optimizers)}"
            )
        for optimizer, own in zip(self.optimizers, saved, strict=True):
            optimizer.load_state_dict(own)


def as_one(optimizers: Sequence[torch.optim.Optimizer]) -> Any:
    """One optimizer is itself."""
    return optimizers[0] if len(optimizers) == 1 else SeveralOptimizers(optimizers)


def name_of(optimizers: Sequence[torch.optim.Optimizer], which: int) -> str:
    """``optimizer 1 (AdamW)``, as an error names it."""
    return f"optimizer {which} ({type(optimizers[which]).__name__})"
