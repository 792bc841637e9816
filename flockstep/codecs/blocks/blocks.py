"""Blocks of a vector and the layout of its codes, alike on every engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096
"""Coordinates per block; a multiple of 8, so that packed codes of a block end at a byte."""
STRIDE = 0x9E3779B9
"""Between the counters of neighbours: coordinate i rounds by the hash of seed + i * STRIDE, of 32 bits."""


@dataclass(frozen=True)
class Blocks:
    """A vector of so many coordinates, coded in so many bits each."""

    count: int
    bits: int

    @property
    def blocks(self) -> int:
        """How many; the last one may be short."""
        return -(-self.count // BLOCK)

    @property
    def padded(self) -> int:
        """Coordinates with those that fill the last group of eight."""
        return -(-self.count // 8) * 8

    @property
    def code_bytes(self) -> int:
        """Of all packed codes: ``bits`` bytes for each eight."""
        return self.padded // 8 * self.bits


def mixed(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A hash of each number: all bits of the input reach all bits of the output."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))
