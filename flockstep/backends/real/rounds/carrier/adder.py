"""The mean of pieces, number by number as ``flockstep.node.mean_of`` takes it: differences from the first, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

_KINDS = {torch.float32: np.float32, torch.float64: np.float64}
_SERIAL = 32 * 1024
"""Numbers up to which torch stays in this thread; in others it would only get in the way of their work."""
_LARGE = 8 * 2**20
"""Bytes of a vector from which passes that are compiled save more than it takes to compile them."""


class Adder:
    """Of vectors of one dtype, which have so many bytes."""

    def __init__(self, dtype: torch.dtype, nbytes: int) -> None:
        self._dtype, self._kind = dtype, _KINDS.get(dtype)
        self._room = np.empty(0, self._kind or np.float32)
        self._sum = _by_numpy
        if nbytes >= _LARGE:
            # Only here: numba takes a second of a core to import.
            from flockstep.backends.real.rounds.carrier.compiled_adder import mean

            self._sum = mean

    def mean(self, vectors: Sequence[memoryview], out: memoryview) -> None:
        """Write the mean of two or more to ``out``."""
        if self._kind is not None:
            self._add([np.frombuffer(view, self._kind) for view in vectors], np.frombuffer(out, self._kind))
            return
        # Halves are summed as floats, and rounded once.
        tensors = [torch.frombuffer(view, dtype=self._dtype) for view in (*vectors, out)]
        for begin in range(0, len(tensors[0]), _SERIAL):
            *halves, half = (tensor[begin : begin + _SERIAL] for tensor in tensors)
            floats = [tensor.float().numpy() for tensor in halves]
            self._add(floats, floats[0])
            half.copy_(torch.from_numpy(floats[0]))

    def _add(self, vectors: list[Any], out: Any) -> None:
        if len(self._room) < len(out):
            self._room = np.empty(len(out), out.dtype)
        self._sum(vectors, out, self._room[: len(out)])


def _by_numpy(vectors: list[Any], out: Any, difference: Any) -> None:
    first, *rest = vectors
    # What is not finite is looked for elsewhere.
    with np.errstate(all="ignore"):
        np.subtract(rest[0], first, out=difference)
        for one in rest[1:]:
            difference += one - first
        difference /= first.dtype.type(len(vectors))
        np.add(first, difference, out=out)
