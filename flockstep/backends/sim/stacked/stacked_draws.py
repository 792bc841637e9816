"""Random numbers of many nodes ahead of time: each stream's own numbers in its own order, drawn in large blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.workloads.workload import Stacked

_NUMBERS_AT_ONCE, _STEPS_AT_ONCE = 2**22, 1024


class StackedDraws:
    """What gradients draw, step by step: for each of its arrays, (runs, nodes, ...)."""

    def __init__(self, stacked: Stacked, streams: Sequence[Sequence[np.random.Generator]], expected: int) -> None:
        """``expected`` steps will be asked for; more may be, but are not drawn before."""
        self._stacked, self._streams, self._left = stacked, streams, expected
        self._block: tuple[NDArray[Any], ...] = ()
        # The first step alone: it shows how many numbers a step needs.
        self._step, self._steps, self._next_steps = 0, 0, 1

    def next(self) -> tuple[NDArray[Any], ...]:
        """Those of the next step."""
        if self._step == self._steps:
            self._fill()
        self._step += 1
        return tuple([array[self._step - 1] for array in self._block])

    def _fill(self) -> None:
        steps, shape = self._next_steps, (len(self._streams), len(self._streams[0]))
        block: tuple[NDArray[Any], ...] | None = None
        for run, nodes in enumerate(self._streams):
            for rank, rng in enumerate(nodes):
                drawn = self._stacked.draw(rank, rng, steps)
                if block is None:
                    block = tuple(np.empty((steps, *shape, *array.shape[1:]), array.dtype) for array in drawn)
                for array, part in zip(block, drawn, strict=True):
                    array[:, run, rank] = part
        self._block, self._step, self._steps = block or (), 0, steps
        numbers = sum(array[0].size for array in self._block)
        self._left -= steps
        self._next_steps = max(1, min(_STEPS_AT_ONCE, _NUMBERS_AT_ONCE // max(1, numbers), self._left))
