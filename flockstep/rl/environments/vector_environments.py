"""gymnasium's vector environments: copies that somebody else steps together.

When an episode ends, they begin the next one in one of three ways (gymnasium's ``AutoresetMode``):

NEXT_STEP    in the step after, whatever they are told then: it counts for nothing
SAME_STEP    at once, with what was seen last told beside
DISABLED     when they are told to
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.rl.environments.copies import Step, needed
from flockstep.rl.environments.spaces import Actions, Observations


class Vector:
    """All copies of a ``gymnasium.vector.VectorEnv``."""

    def __init__(self, env: Any) -> None:
        self._env, self.count = env, int(env.num_envs)
        self.spaces = env.single_observation_space, env.single_action_space
        self.observations, self.actions = Observations.of(self.spaces[0]), Actions.of(self.spaces[1])
        modes = needed("gymnasium").vector.AutoresetMode
        # Whoever does not say is taken for the usual kind, as gymnasium's own wrappers do.
        mode = modes(env.metadata.get("autoreset_mode", modes.NEXT_STEP))
        self._begun = {modes.NEXT_STEP: self._next_step, modes.SAME_STEP: self._same_step}.get(mode, self._told_to)
        self._ended = np.zeros(self.count, bool)

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Copy i begins with ``seed + i``, as gymnasium has it."""
        self._ended = np.zeros(self.count, bool)
        return self._rows(self._env.reset(seed=seed)[0])

    def step(self, drawn: NDArray[Any]) -> Step:
        """One step of all."""
        seen, rewards, terminated, truncated, info = self._env.step(self.actions.decode(drawn))
        rows, ends = self._rows(seen), (np.array(terminated, bool), np.array(truncated, bool))
        step = Step(rows, np.array(rewards, np.float64), *ends, rows, np.ones(self.count, bool))
        return self._begun(step, info)

    def close(self) -> None:
        """Close all."""
        self._env.close()

    def _next_step(self, step: Step, info: dict[str, Any]) -> Step:
        counts, self._ended = ~self._ended, step.terminated | step.truncated
        return replace(step, counts=counts)

    def _same_step(self, step: Step, info: dict[str, Any]) -> Step:
        if not (ended := step.terminated | step.truncated).any():
            return step
        if "final_obs" not in info:
            raise ValueError("HSA2C.env begins episodes anew in the same step, and does not tell final_obs")
        finals = step.observations.copy()
        for i in np.flatnonzero(ended):
            finals[i] = self.observations.encode(info["final_obs"][i])[0]
        return replace(step, finals=finals)

    def _told_to(self, step: Step, info: dict[str, Any]) -> Step:
        if not (ended := step.terminated | step.truncated).any():
            return step
        begun = self._rows(self._env.reset(options={"reset_mask": ended})[0])
        shape = (-1, *[1] * (begun.ndim - 1))
        return replace(step, observations=np.where(ended.reshape(shape), begun, step.finals))

    def _rows(self, observations: Any) -> NDArray[Any]:
        """A copy: they may be written over in the next step, and a policy still learns from them."""
        return np.array(self.observations.encode(observations))
