"""Pong for stable-baselines3: the same emulator and screens as ours, faster than that library's own wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from benchmarks.a2c.one_call import OneCall
from flockstep.rl.environments.atari import atari

_SCREENS, _ACTIONS = Box(0, 255, (4, 84, 84), np.uint8), Discrete(6)


class Single(gymnasium.Env[NDArray[Any], Any]):
    """One game as gymnasium has it, for DummyVecEnv and SubprocVecEnv."""

    observation_space, action_space = _SCREENS, _ACTIONS

    def __init__(self) -> None:
        # Of the two emulators, the one that begins a game when it is told to.
        self._game = atari("Pong", 1, emulator="ale_py")
        self._fresh: NDArray[Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[NDArray[Any], Any]:
        """A game that was over has begun anew already."""
        if seed is not None or self._fresh is None:
            self._fresh = self._game.reset(seed)[0]
        return self._fresh, {}

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """One step."""
        step = self._game.step(np.array([action]))
        self._fresh = step.observations[0]
        return step.finals[0], float(step.rewards[0]), bool(step.terminated[0]), bool(step.truncated[0]), {}

    def close(self) -> None:
        """End the game."""
        self._game.close()


class Batch(OneCall):
    """All games in one call, the emulator on two threads: more than stable-baselines3 brings itself."""

    def __init__(self, envs: int) -> None:
        from ale_py.vector_env import AtariVectorEnv

        super().__init__(envs, _SCREENS, _ACTIONS)
        self._pool = AtariVectorEnv("pong", envs, num_threads=2, autoreset_mode="SameStep", reward_clipping=True)

    def reset(self) -> Any:
        """Begin all games."""
        return self._pool.reset(seed=0)[0]

    def step_wait(self) -> Any:
        """Do it."""
        seen, rewards, terminated, truncated, told = self._pool.step(self.actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            infos[i] = {"terminal_observation": told["final_obs"][i], "TimeLimit.truncated": bool(truncated[i])}
        return seen, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        """End the games."""
        self._pool.close()
