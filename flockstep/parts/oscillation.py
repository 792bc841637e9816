"""Whether a change that is merged one period late makes the global model swing.

Where the loss has curvature l, k steps of rate eta go c = 1 - (1 - eta l)^k of the way to the optimum, and a merge that
is one period late gives  W_{r+1} = W_r - lr c W_{r-1}.  Its roots are z^2 - z + lr c = 0: no swing while lr c < 1/4, a
swing that dies out by sqrt(lr c) per period up to 1, and growth beyond.

c is seen without a second derivative: a period's mean change is m_r = c (W_r - W*), so between two periods

    m_r - m_{r-1} = c (W_r - W_{r-1}),      W_r - W_{r-1} = -lr m_{r-2}

and lr c is the slope of m_{r-1} - m_r on m_{r-2}. Noise of different periods is independent, so it does not bias the
slope. Curvature differs between directions: this is its mean along those in which the model moves.
"""

from __future__ import annotations

import warnings

from torch import Tensor

_COORDINATES = 1 << 16
_FADING = 0.9
_PERIODS = 10
_SWINGS, _LASTS, _GROWS = 0.25, 0.5, 1.0
"""A swing; one of which more than 0.7 is left after a period, so that it lasts; one that grows."""


class Oscillation:
    """Watches the mean changes of successive periods, on some of the coordinates."""

    def __init__(self, owner: str, *, speaks: bool) -> None:
        self._owner, self._speaks = owner, speaks
        self._seen: list[Tensor] = []
        self._above = self._below = 0.0
        self._periods = 0

    @property
    def strength(self) -> float:
        """lr c: a swing above 1/4, growth above 1. Zero as long as nothing is known."""
        return self._above / self._below if self._below else 0.0

    def see(self, change: Tensor) -> None:
        """One more period's mean change."""
        stride = -(-change.numel() // _COORDINATES)
        self._seen.append(change[::stride].double().cpu())
        if len(self._seen) < 3:
            return
        oldest, before, now = self._seen
        del self._seen[0]
        self._above = _FADING * self._above + float((before - now) @ oldest)
        self._below = _FADING * self._below + float(oldest @ oldest)
        self._periods += 1
        if self._speaks and self._periods >= _PERIODS and self.strength > _LASTS:
            self._speaks = False
            left = "grow" if self.strength > _GROWS else f"keep {self.strength**0.5:.2f} of their size per period"
            warnings.warn(
                f"{self._owner}: merges swing, and swings {left} (outer_lr times the share of the way that a period "
                f"goes is {self.strength:.2f}, and should be below {_SWINGS:g})\n"
                "  leave pull at its default, so that replicas keep most of what they have learned, lower outer_lr to"
                f" {_SWINGS / self.strength:.2g} of what it is, or take fewer steps per period (max_period)",
                stacklevel=2,
            )
