"""Our games as stable-baselines3 takes environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.a2c.one_call import OneCall
from flockstep.rl.environments.copies import Environments


class Pool(OneCall):
    """All copies in one call."""

    def __init__(self, games: Environments, seed: int) -> None:
        super().__init__(games.count, *games.spaces)
        self._games, self._begin_with = games, seed

    def reset(self) -> Any:
        """Begin all games."""
        return self._games.reset(self._begin_with)

    def step_wait(self) -> Any:
        """Do it."""
        step = self._games.step(self.actions)
        done = step.terminated | step.truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            cut = bool(step.truncated[i] and not step.terminated[i])
            infos[i] = {"terminal_observation": step.finals[i], "TimeLimit.truncated": cut}
        return step.observations, step.rewards.astype(np.float32), done, infos

    def ended(self) -> list[tuple[float, int]]:
        """Score and length of whole games that ended since this was last asked."""
        ended: list[tuple[float, int]] = self._games.ended()  # type: ignore[attr-defined]
        return ended

    def close(self) -> None:
        """End the games."""
        self._games.close()
