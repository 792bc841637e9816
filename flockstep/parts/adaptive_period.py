"""A period as long as one synchronisation: as many steps as fit into a mean that travels in the background.

After every step a node looks whether the mean is there. How many steps fitted travels with the next mean, and the mean
of these numbers is the length of the period after that: the same on all nodes, so that all merge at the same step. A
period whose mean was not there at its end was too short, and nobody knows by how much: it counts four times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any

import torch
from torch import Tensor

from flockstep.node import Node, Pending
from flockstep.parts.slow_network import SlowNetworkWarning

_FIRST, _MORE = 8, 4
"""k as long as nobody knows better, and how much longer a period becomes when a synchronisation did not fit."""


class AdaptivePeriod:
    """How many steps a node's period has, and the mean that travels during it; ``fixed``: always so many."""

    def __init__(
        self,
        node: Node,
        mean: Callable[[], Coroutine[Any, Any, Tensor]],
        *,
        fixed: int | None,
        least: int,
        most: int,
        warning: SlowNetworkWarning,
    ) -> None:
        self._node, self._mean, self._warning = node, mean, warning
        self._fixed, self._least, self._most = fixed, least, most
        self._state = node.keep("period", torch.tensor([fixed or self._within(_FIRST), 0, 0]))
        self._k, self.taken, self._said = (int(number) for number in self._state)
        """Steps of this period, those taken of it, and how many this node said would fit, with what is under way."""
        self._next = self._k
        self._flight: Pending[Tensor] | None = None
        self._told: Pending[Tensor] | None = None
        self._fitted = 0
        """Steps that were taken when what is under way had come; 0 before that."""
        if self._said:
            # A resumed run sends again what was under way.
            self._launch()

    def begin(self) -> None:
        """The next period, as long as all have agreed; the mean travels during it."""
        self._k, self.taken = self._next, 0
        self._launch()
        self._write()

    def _launch(self) -> None:
        """Let the mean travel, and with it how many steps fitted into the one before."""
        self._flight, self._fitted = self._node.spawn(self._mean()), 0
        if self._fixed is None:
            said = torch.tensor([float(self._said)], dtype=torch.float64)
            self._told = self._node.spawn(self._node.mean(said, "steps that fit"))

    def ends(self) -> bool:
        """One more step was taken: whether it was the last of its period."""
        self.taken += 1
        if self._flight is not None and not self._fitted and self._flight.done:
            self._fitted = self.taken
        self._write()
        return self.taken == self._k

    async def landed(self) -> Tensor | None:
        """A period is over: the mean that was under way, waited for; None where there was none."""
        flight, self._flight = self._flight, None
        if flight is None:
            self._said = self._k
            return None
        fitted = torch.tensor(float(self._fitted or _MORE * self._k), dtype=torch.float64)
        self._said = int(self._node.agreed(fitted))
        mean = await flight
        if self._told is not None:
            self._next = self._within(math.ceil(float(await self._told)))
            self._warning.see(self._next)
        return mean

    def rest(self) -> None:
        """The run is over: nothing is under way any more."""
        self.taken = self._said = 0
        self._write()

    def _write(self) -> None:
        self._state.copy_(torch.tensor([self._k, self.taken, self._said]))

    def _within(self, k: int) -> int:
        return min(max(k, self._least), self._most)
