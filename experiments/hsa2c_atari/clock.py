"""How much of the minutes that a training may take is over."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """So many seconds since it ``began``."""

    began: float
    seconds: float

    def spent(self) -> float:
        """The share of the time that is over."""
        return (time.monotonic() - self.began) / self.seconds
