"""Our games as stable-baselines3 takes environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from flockstep.rl.environments import Environments


class Pool(VecEnv):
    """All copies in one call."""

    def __init__(self, games: Environments, seed: int) -> None:
        super().__init__(games.count, *games.spaces)
        self._games, self._begin_with = games, seed
        self._actions = np.zeros(games.count, np.int64)

    def reset(self) -> Any:
        """Begin all games."""
        return self._games.reset(self._begin_with)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Remember what to do."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Do it."""
        step = self._games.step(self._actions)
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

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Nothing but whether it can be drawn."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """There is nothing to set."""

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """There is nothing to call."""
        return []

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Sequence[bool]:  # type: ignore[override]
        """Nothing is."""
        return [False] * self.num_envs
