"""A learning rate that falls to 0 over minutes, not over steps."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class ByClock:
    """Linear in time since ``began``. Every process on a machine reads the same clock."""

    rate: float
    began: float
    seconds: float

    def __call__(self, remaining: float) -> float:
        """What remains of the steps does not matter: nobody knows how many there will be."""
        return self.rate * max(0.0, 1 - self.spent())

    def spent(self) -> float:
        """The share of the time that is over."""
        return (time.monotonic() - self.began) / self.seconds
