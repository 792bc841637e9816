"""What all engines share: blocks, scales and the layout of a message.

A vector is cut into blocks. In a block with scale s = 2^e, coordinate i is the integer k_i = floor(x_i / s + u_i) with
a dither u_i that makes it right on average. Of k = c + q h, with q = 2^bits, the colour c travels; the receiver finds h
from its own vector: that which brings s k nearest to it. A checksum of all h of a block tells whether they are right.

Scales are powers of two: then x / s is exact, every engine comes to the same integers, and a scale is one byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flockstep.codecs.blocks.blocks import BLOCK, Blocks, mixed
from flockstep.codecs.blocks.engines import choose

LEAST_EXPONENT, MOST_EXPONENT = -120, 100
PRECISION = 22
"""x / s stays below 2^22, where float32 still knows quarters."""
NO_EXPONENT = -128
"""Of a block that holds nothing but zeros, or of a vector nobody has a scale for yet: as fine as float32 allows."""


@dataclass(frozen=True)
class Plan(Blocks):
    """How a vector of so many coordinates is coded in so many bits."""

    @property
    def nbytes(self) -> int:
        """Of a whole message: a checksum and an exponent per block, then the codes."""
        return 5 * self.blocks + self.code_bytes

    def split(self, data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views of a message's data: checksums as bytes, exponents, codes."""
        sums, exponents, codes = torch.split(data, [4 * self.blocks, self.blocks, self.code_bytes])
        return sums, exponents.view(torch.int8), codes


@lru_cache(maxsize=1)
def weights() -> NDArray[np.uint32]:
    """Odd numbers without pattern, one per coordinate of a block: errors that would cancel in a plain sum do not."""
    return mixed(np.arange(BLOCK, dtype=np.uint32)) | np.uint32(1)


def exponents_for(reach: Tensor, bits: int) -> Tensor:
    """The least e per block with which a distance of ``reach`` is decoded right: 2^e (q-2)/2 >= reach.

    A dithered point lies up to s from x, not s/2 as a rounded one, and must still be nearer to y than q s / 2.
    """
    scale = 2 * reach.double() / (2**bits - 2)
    exponents = torch.ceil(torch.log2(scale)).clamp(LEAST_EXPONENT, MOST_EXPONENT)
    return torch.where(reach > 0, exponents, torch.tensor(float(NO_EXPONENT), dtype=torch.double)).to(torch.int8)


__all__ = ["Engine", "choose", "load"]


class Engine(Protocol):
    """One way to compute the lattice; all come to the same integers."""

    def encode(self, v: Tensor, exponents: Tensor, seed: int, plan: Plan, data: Tensor) -> bool:
        """Write a vector's message into ``data``; False if a value is not finite."""

    def decode(self, data: Tensor, near: Tensor, plan: Plan, out: Tensor) -> tuple[Tensor, Tensor]:
        """Write the vector into ``out``; per block, whether it checks, and the largest distance from ``near``."""


def load(name: str) -> Engine:
    """An engine, imported when it is first needed: two of them take a while."""
    engine: Engine = import_module(f"flockstep.codecs.lattice.on_{name}")
    return engine
