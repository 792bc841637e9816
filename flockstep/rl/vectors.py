"""gymnasium's vector environments: copies that somebody else steps together.

When an episode ends, they begin the next one in one of three ways (gymnasium's ``AutoresetMode``):

NEXT_STEP    in the step after, whatever they are told then: it counts for nothing
SAME_STEP    at once, with what was seen last told beside
DISABLED     when they are told to
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.rl.environments import Step, needed
from flockstep.rl.spaces import Actions, Observations


class Vector:
    """All copies of a ``gymnasium.vector.VectorEnv``."""

    def __init__(self, env: Any) -> None:
        self._env, self.count = env, int(env.num_envs)
        self.spaces = env.single_observation_space, env.single_action_space
        self.observations, self.actions = Observations.of(self.spaces[0]), Actions.of(self.spaces[1])
        modes = needed("gymnasium").vector.AutoresetMode
        # Whoever does not say is taken for the usual kind, as gymnasium's own wrappers do.
        mode = modes(env.metadata.get("autoreset_mode", modes.NEXT_STEP))
        self._step = {modes.NEXT_STEP: self._next_step, modes.SAME_STEP: self._same_step}.get(mode, self._told_to)
        self._ended = np.zeros(self.count, bool)

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Copy i begins with ``seed + i``, as gymnasium has it."""
        self._ended = np.zeros(self.count, bool)
        return self._rows(self._env.reset(seed=seed)[0])

    def step(self, drawn: NDArray[Any]) -> Step:
        """One step of all."""
        seen, rewards, terminated, truncated, told = self._env.step(self.actions.decode(drawn))
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        return self._step(self._rows(seen), np.array(rewards, np.float64), terminated, truncated, told)

    def close(self) -> None:
        """Close all."""
        self._env.close()

    def _next_step(
        self,
        rows: NDArray[Any],
        rewards: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
        told: dict[str, Any],
    ) -> Step:
        counts, self._ended = ~self._ended, terminated | truncated
        return Step(rows, rewards, terminated, truncated, rows, counts)

    def _same_step(
        self,
        rows: NDArray[Any],
        rewards: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
        told: dict[str, Any],
    ) -> Step:
        finals = rows
        if (ended := terminated | truncated).any():
            if "final_obs" not in told:
                raise ValueError("HSA2C.env begins episodes anew in the same step, and does not tell final_obs")
            finals = rows.copy()
            for i in np.flatnonzero(ended):
                finals[i] = self.observations.encode(told["final_obs"][i])[0]
        return Step(rows, rewards, terminated, truncated, finals, np.ones(self.count, bool))

    def _told_to(
        self,
        rows: NDArray[Any],
        rewards: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
        told: dict[str, Any],
    ) -> Step:
        seen = rows
        if (ended := terminated | truncated).any():
            begun = self._rows(self._env.reset(options={"reset_mask": ended})[0])
            seen = np.where(ended.reshape(-1, *[1] * (rows.ndim - 1)), begun, rows)
        return Step(seen, rewards, terminated, truncated, rows, np.ones(self.count, bool))

    def _rows(self, observations: Any) -> NDArray[Any]:
        """A copy: they may be written over in the next step, and a policy still learns from them."""
        return np.array(self.observations.encode(observations))
