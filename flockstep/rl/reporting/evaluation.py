"""What a policy is worth: its return over whole episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.rl.environments.copies import Environments

Predict = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class Evaluation:
    """What ``HSA2C.evaluate`` found: returns and lengths of some episodes, with their ``mean`` and ``std``.

    Args:
        returns: Sum of rewards of each episode.
        lengths: Environment steps of each episode.
    """

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
    """Play one episode after another, in every copy as many as in the others, or one more; a seed fixes them all.

    The first to end would be the short ones, so nobody plays what another was to play.
    """
    played: list[tuple[float, int]] = []
    # Atari games count whole games and points, whatever episodes a policy is trained on.
    whole = getattr(env, "ended", None)
    left = np.array([len(range(i, episodes, env.count)) for i in range(env.count)])
    scores, lengths = np.zeros(env.count), np.zeros(env.count, np.int64)
    seen = env.reset(seed)
    while len(played) < episodes:
        step = env.step(predict(seen))
        seen = step.observations
        if whole is not None:
            played += whole()
            continue
        scores += step.rewards * step.counts
        lengths += step.counts
        for i in np.flatnonzero(step.terminated | step.truncated):
            if left[i]:
                played.append((float(scores[i]), int(lengths[i])))
                left[i] -= 1
            scores[i] = lengths[i] = 0
    return Evaluation(*zip(*played[:episodes], strict=True))
