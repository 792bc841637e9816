"""A training's curves for TensorBoard, under the names that stable-baselines3 gives them."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self

from flockstep.rl.environments.copies import needed
from flockstep.rl.reporting.callbacks import Every
from flockstep.rl.reporting.history import Row

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
    """A callback that writes rows: ``with TensorBoard("runs") as board: model.learn(n, board)``.

    All of them, or one every so many environment steps.
    """

    def __init__(self, folder: str | Path, *, every: int | None = None, since: int = 0) -> None:
        needed("tensorboard")
        with warnings.catch_warnings():
            # What it imports warns of its own old age.
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(folder))
        self._every = None if every is None else Every(every, since)

    def __call__(self, row: Row) -> None:
        """One more row."""
        if self._every is None or self._every.due(row.timesteps):
            for name, label in _NAMES.items():
                self.put(label, getattr(row, name), row.timesteps)

    def put(self, label: str, value: float, timesteps: int) -> None:
        """One number, unless it is none."""
        if not math.isnan(value):
            self._writer.add_scalar(label, value, timesteps)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


def run_folder(root: str | Path, name: str, *, go_on: bool) -> Path:
    """``root/name_1``, then ``root/name_2``, as stable-baselines3 counts runs; to go on is to write to the last one."""
    root, before = Path(root), f"{name}_"
    names = [path.name.removeprefix(before) for path in root.glob("*") if path.name.startswith(before)]
    last = max((int(number) for number in names if number.isdecimal()), default=0)
    return root / f"{before}{max(last, 1) if go_on else last + 1}"
