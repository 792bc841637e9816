"""What virtual nodes that arrive together would have waited: a clock per node, in place of events.

Right as long as only whole rounds cost time: gradients, and means that everybody takes part in. Messages between
neighbours take none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flockstep.backends.sim.cluster.compute import Clock
from flockstep.backends.sim.wires import Wires

Floats = NDArray[np.float64]


class StackedClock:
    """A clock per run and node, in seconds."""

    def __init__(self, starts: Floats, clocks: Sequence[Sequence[Clock]] | None, wires: Wires | None) -> None:
        self.now, self._clocks, self._wires = starts, clocks, wires
        self.computing, self.waiting, self.talking = (np.zeros_like(starts) for _ in range(3))
        # Most studies of numbers have no clock, and pay nothing for it.
        self.over_a_network = wires is not None
        self._stands_still = clocks is None and wires is None and not starts.any()

    def compute(self) -> None:
        """A gradient of everybody."""
        if self._clocks is not None:
            took = np.array([[clock.gradient() for clock in run] for run in self._clocks])
            self.computing += took
            self.now = self.now + took

    def meet(self, nbytes: int) -> None:
        """Everybody waits for the last, then a ring passes so many bytes."""
        if self._stands_still:
            return
        last = self.now.max(axis=-1, keepdims=True)
        talk = 0.0 if self._wires is None else self._wires.ring_seconds(nbytes)
        self._wait_until(np.broadcast_to(last, self.now.shape))
        self.talking += talk
        self.now = self.now + talk

    def meet_neighbours(self, weights: Tensor) -> None:
        """Everybody waits for those who count in its row."""
        if not self._stands_still:
            theirs = np.where(weights.numpy() != 0, self.now[:, None, :], -np.inf)
            self._wait_until(theirs.max(axis=-1))

    def _wait_until(self, then: Floats) -> None:
        self.waiting += then - self.now
        self.now = then
