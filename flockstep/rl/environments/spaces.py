"""What a policy sees and does: observations as rows of numbers or images, actions as choices or real numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Observations:
    """The observations of an environment. A ``Discrete`` one becomes a row with a 1 in it, as usual."""

    shape: tuple[int, ...]
    choices: int = 0
    """How many values a discrete observation can have; 0 for numbers."""
    start: int = 0
    dtype: str = "float32"

    @classmethod
    def of(cls, space: Any) -> Observations:
        """From a gymnasium space."""
        kind = type(space).__name__
        if kind == "Box":
            return cls(tuple(space.shape), dtype=str(space.dtype))
        if kind == "Discrete":
            return cls((int(space.n),), int(space.n), int(space.start))
        raise ValueError(
            f"HSA2C.env must have Box or Discrete observations, got {space}\n"
            "  gymnasium.wrappers.FlattenObservation turns most others into a Box"
        )

    @property
    def size(self) -> int:
        """Numbers in one observation."""
        return int(np.prod(self.shape))

    @property
    def is_image(self) -> bool:
        """Whether a convolutional policy can look at it."""
        return len(self.shape) == 3

    def encode(self, raw: Any) -> NDArray[Any]:
        """Observations of one or several environments as (count, *shape)."""
        given = np.asarray(raw)
        if not self.choices:
            return given.reshape(-1, *self.shape)
        rows = np.zeros((given.size, self.choices), np.float32)
        rows[np.arange(given.size), given.ravel().astype(np.int64) - self.start] = 1
        return rows

    def is_single(self, raw: Any) -> bool:
        """Whether this is the observation of one environment, and not of several."""
        return np.ndim(raw) == (0 if self.choices else len(self.shape))


@dataclass(frozen=True)
class Actions:
    """The actions of an environment: one of ``size`` choices, several choices at once, or ``size`` real numbers within
    bounds."""

    discrete: bool
    size: int
    """Numbers that a policy gives for each observation: logits of all choices together, or means."""
    shape: tuple[int, ...] = ()
    start: int | tuple[int, ...] = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    parts: tuple[int, ...] = ()
    """Where an action is several choices at once, how many values each has; empty where it is one, or real numbers."""
    dtype: str = "int64"
    """Of choices."""

    @classmethod
    def of(cls, space: Any) -> Actions:
        """From a gymnasium space."""
        kind = type(space).__name__
        if kind == "Discrete":
            return cls(True, int(space.n), start=int(space.start))
        if kind == "Box":
            low, high = (tuple(map(float, np.ravel(bound))) for bound in (space.low, space.high))
            return cls(False, len(low), tuple(space.shape), low=low, high=high)
        if kind == "MultiDiscrete":
            parts, start = (tuple(map(int, np.ravel(each))) for each in (space.nvec, space.start))
            return cls(True, sum(parts), tuple(space.shape), start, parts=parts, dtype=str(space.dtype))
        if kind == "MultiBinary":
            parts = (2,) * int(np.prod(space.shape))
            return cls(True, sum(parts), tuple(space.shape), (0,) * len(parts), parts=parts, dtype=str(space.dtype))
        raise ValueError(f"HSA2C.env must have Discrete, MultiDiscrete, MultiBinary or Box actions, got {space}")

    def decode(self, drawn: NDArray[Any]) -> NDArray[Any]:
        """What environments are given: (count, *shape) whole numbers, or real ones within the bounds.

        ``drawn`` has (count,) choices from 0, (count, parts) of them, or (count, size) numbers of any magnitude.
        """
        if self.discrete:
            chosen = np.asarray(drawn).astype(np.int64).reshape(-1, *self.shape)
            given: NDArray[Any] = np.add(chosen, np.reshape(self.start, self.shape)).astype(self.dtype)
            return given
        bounded = np.clip(np.asarray(drawn, np.float32).reshape(-1, self.size), self.low, self.high)
        return bounded.astype(np.float32).reshape(-1, *self.shape)
