"""What a policy is worth: its return over whole episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.rl.environments import Environments

Predict = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of some episodes."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """The standard deviation of returns."""
        return float(np.std(self.returns))

    def __str__(self) -> str:
        return f"{self.mean:.4g} +- {self.std:.3g} over {len(self.returns)} episode(s)"


def evaluate(env: Environments, predict: Predict, episodes: int, seed: int | None) -> Evaluation:
    """Play one episode after another in an environment of one copy; a seed fixes them all."""
    returns: list[float] = []
    lengths: list[int] = []
    # Atari games count whole games and points, whatever episodes a policy is trained on.
    whole = getattr(env, "ended", None)
    seen, score, length = env.reset(seed), 0.0, 0
    while len(returns) < episodes:
        step = env.step(predict(seen))
        seen, score, length = step.observations, score + float(step.rewards[0]), length + int(step.counts[0])
        if whole is not None:
            ended = whole()
        elif step.terminated[0] or step.truncated[0]:
            ended, score, length = [(score, length)], 0.0, 0
        else:
            ended = []
        for total, steps in ended:
            returns.append(total)
            lengths.append(steps)
    return Evaluation(tuple(returns[:episodes]), tuple(lengths[:episodes]))
