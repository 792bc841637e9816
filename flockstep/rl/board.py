"""A training's curves for TensorBoard, under the names that stable-baselines3 gives them."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self

from flockstep.rl.environments import needed
from flockstep.rl.history import Row

_NAMES = {
    "mean_return": "rollout/ep_rew_mean",
    "mean_length": "rollout/ep_len_mean",
    "steps_per_second": "time/fps",
    "entropy": "train/entropy",
    "value_loss": "train/value_loss",
    "policy_loss": "train/policy_loss",
    "learning_rate": "train/learning_rate",
}


class TensorBoard:
    """A callback that writes every row: ``with TensorBoard("runs") as board: model.learn(n, board)``."""

    def __init__(self, folder: str | Path) -> None:
        needed("tensorboard")
        with warnings.catch_warnings():
            # What it imports warns of its own old age.
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(folder))

    def __call__(self, row: Row) -> None:
        """One more row."""
        for name, label in _NAMES.items():
            value = getattr(row, name)
            if not math.isnan(value):
                self._writer.add_scalar(label, value, row.timesteps)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
