"""Few bits per coordinate, rounded at random so that it is right on average (QSGD).

In each block of 4,096 coordinates, with m its largest magnitude and L = 2^(bits-1) - 1 levels on either side of zero,

    Enc(x) = sign(x) floor(|x| L / m + u)         u uniform in [0, 1)
    Dec(k) = k m / L

The error is below m / L: it goes with the size of the vector, so this suits gradients and changes; for models, whose
size is much larger than their distance, use ``Modular``.
Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, NeurIPS 2017, arXiv 1610.02132 (with the largest magnitude as the norm).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.message import Message
from flockstep.parts.codecs.codec import finite, readable
from flockstep.parts.codecs.lattice.on_torch import pack, unpack
from flockstep.parts.codecs.lattice.plan import BLOCK, Plan


@dataclass(frozen=True, kw_only=True)
class Stochastic:
    """``bits`` per coordinate, sign included, and one float32 per block."""

    bits: int = 8

    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if check.whole(self, "bits", self.bits, at_least=2) > 16:
            raise ValueError(f"Stochastic.bits must be at most 16, got {self.bits}")

    @property
    def name(self) -> str:
        """``Stochastic(8)``: the bytes of other numbers of bits mean another thing."""
        return f"Stochastic({self.bits})"

    @property
    def levels(self) -> int:
        """On either side of zero."""
        return (1 << (self.bits - 1)) - 1

    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        """Levels, and each block's largest magnitude."""
        finite(self, v)
        plan, blocks = Plan(v.numel(), self.bits), self._blocks(v)
        largest = _rounded_up(blocks.abs().amax(1))
        # Drawn where the stream is, so that every device rounds alike.
        u = torch.from_numpy(rng.random(blocks.shape)).to(v.device)
        scale = torch.where(largest > 0, largest, torch.ones_like(largest)).double()
        level = (blocks.double().abs() / scale[:, None] * self.levels + u).floor().clamp(max=self.levels)
        signed = torch.where(blocks < 0, -level, level).long() + self.levels
        codes = pack(signed.view(-1)[: plan.padded], self.bits)
        data = torch.cat([largest.view(torch.uint8), codes])
        return Message(data, self.name, tuple(v.shape), v.dtype)

    def decode(self, message: Message, near: Tensor) -> Tensor:
        """The levels, at their blocks' scale."""
        plan = Plan(near.numel(), self.bits)
        readable(self, message, near, nbytes=4 * plan.blocks + plan.code_bytes)
        # A copy starts at an aligned address, which a slice of a network buffer need not.
        data = message.data.to(near.device, copy=True)
        largest = data[: 4 * plan.blocks].view(torch.float32).double()
        levels = (unpack(data[4 * plan.blocks :], self.bits)[: plan.count] - self.levels).double()
        scale = (largest / self.levels).repeat_interleave(BLOCK)[: plan.count]
        return (levels * scale).to(message.dtype).view(message.shape)

    def error_bound(self, v: Tensor) -> Tensor:
        """One level of each coordinate's block, and what float32 leaves of it."""
        largest = self._blocks(v.detach()).double().abs().amax(1)
        bound = largest * (1 / self.levels + 2.0**-22)
        return bound.repeat_interleave(BLOCK)[: v.numel()].view(v.shape)

    def _blocks(self, v: Tensor) -> Tensor:
        plan = Plan(v.numel(), self.bits)
        padded = torch.zeros(plan.blocks * BLOCK, dtype=v.dtype, device=v.device)
        padded[: plan.count] = v.detach().flatten()
        return padded.view(plan.blocks, BLOCK)


def _rounded_up(largest: Tensor) -> Tensor:
    """In float32, and never below: above its scale a value could not be right on average."""
    short = largest.float()
    return torch.where(
        short.double() < largest.double(), torch.nextafter(short, torch.full_like(short, torch.inf)), short
    )
