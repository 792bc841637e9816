"""What stable-baselines3 wants of environments that are stepped in one call, beside stepping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv


class OneCall(VecEnv):
    """``reset``, ``step_wait`` and ``close`` are for whoever has the environments."""

    actions: NDArray[Any]

    def step_async(self, actions: NDArray[Any]) -> None:
        """Remember what to do."""
        self.actions = actions.astype(np.int64)

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
