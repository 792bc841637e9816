"""How long a gradient takes on a virtual node."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flockstep import check, units
from flockstep.node import stream


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How long a gradient, with its optimizer step, takes on a virtual node: always the same, or log-normal.

    Args:
        step: Mean time: seconds, or a text such as "50 ms".
        spread: Standard deviation of the time's logarithm; 0: always the same.
        stragglers: How many times slower some nodes are, by rank: ``{3: 4.0}``.
        pause: How long a pause takes: seconds, or a text.
        pauses: Probability that a pause follows a gradient, from 0 to 1.

    Example:
        fs.Compute(step="50 ms", spread=0.3, stragglers={3: 4.0})
    """

    step: str | float
    spread: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    pause: str | float = 0.0
    pauses: float = 0.0

    def __post_init__(self) -> None:
        units.seconds(self.step, "Compute.step")
        units.seconds(self.pause, "Compute.pause")
        check.not_negative(self, "spread", self.spread)
        check.fraction(self, "pauses", self.pauses)
        check.ranks(self, "stragglers", self.stragglers)
        for rank, factor in self.stragglers.items():
            check.positive(self, f"stragglers[{rank}]", factor)

    def check_size(self, size: int) -> None:
        """Every node named here must exist."""
        check.ranks(self, "stragglers", self.stragglers, size)


class Clock:
    """One node's gradient times, drawn from its own stream so that the hardware never changes the numbers."""

    def __init__(self, compute: Compute | None, rank: int, rng: np.random.Generator) -> None:
        compute = compute or Compute(step=0.0)
        self._step = units.seconds(compute.step) * compute.stragglers.get(rank, 1.0)
        self._spread = compute.spread
        self._pause = units.seconds(compute.pause)
        self._pauses = compute.pauses
        self._rng = rng
        # exp(spread * z) has mean exp(spread^2 / 2): take it out, so that ``step`` is the mean.
        self._offset = -0.5 * compute.spread**2

    @property
    def takes_time(self) -> bool:
        """Whether a gradient is not there at once."""
        return self._step > 0

    def gradient(self) -> float:
        """Seconds the next gradient takes."""
        time = self._step
        if self._spread:
            time *= math.exp(self._offset + self._spread * self._rng.standard_normal())
        if self._pauses and self._rng.random() < self._pauses:
            time += self._pause
        return time


def clocks_of(compute: Compute | None, size: int, seed: int) -> list[Clock]:
    """One for each node."""
    if compute is not None:
        compute.check_size(size)
    return [Clock(compute, rank, stream(seed, rank, "clock")) for rank in range(size)]


def starts_of(skew: float, size: int, seed: int) -> list[float]:
    """When each node starts: somewhere in the first ``skew`` seconds."""
    return [float(start) for start in skew * stream(seed, 0, "skew").random(size)]
