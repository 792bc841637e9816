"""What all engines share: levels, scales and the layout of a message.

In a block with the largest magnitude m, and L levels on either side of zero, every engine computes

    t = |x| fl(L / m);   k = min(floor(t + u), L);   code = L + sign(x) k;   value = (code - L) fl(m / L)

fl: divided in float64, then rounded once to the dtype of the vector. A product that is rounded before anything is added
to it has one result everywhere, so all come to the same bytes and the same vector; fused multiply-adds must stay off.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from flockstep.codecs.blocks.blocks import Blocks

LEAST_SCALE = 2.0**-100
"""What a smaller m counts as, zero too: L / m must be finite in float32."""


@dataclass(frozen=True)
class Plan(Blocks):
    """How a vector of so many coordinates is coded in so many bits."""

    @property
    def levels(self) -> int:
        """On either side of zero."""
        return (1 << (self.bits - 1)) - 1

    @property
    def nbytes(self) -> int:
        """Of a whole message: a float32 per block, then the codes."""
        return 4 * self.blocks + self.code_bytes

    def split(self, data: Tensor) -> tuple[Tensor, Tensor]:
        """Views of a message's data: scales as bytes, and codes."""
        scales, codes = torch.split(data, [4 * self.blocks, self.code_bytes])
        return scales, codes


class Engine(Protocol):
    """One way to compute the levels; all come to the same integers."""

    def encode(self, v: Tensor, seed: int, plan: Plan, scales: Tensor, codes: Tensor) -> bool:
        """Write a vector's scales and codes; False if a value is not finite, or its scale not in float32."""

    def decode(self, scales: Tensor, codes: Tensor, plan: Plan, out: Tensor) -> None:
        """Write the vector into ``out``."""


def load(name: str) -> Engine:
    """An engine, imported when it is first needed: two of them take a while."""
    engine: Engine = import_module(f"flockstep.codecs.qsgd.on_{name}")
    return engine
