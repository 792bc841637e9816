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
from flockstep.codecs.blocks import engines as engines
from flockstep.codecs.blocks.blocks import BLOCK
from flockstep.codecs.blocks.on_torch import in_blocks
from flockstep.codecs.codec import largest, readable, sound
from flockstep.codecs.qsgd.levels import LEAST_SCALE, Plan, load
from flockstep.errors import CodecRange
from flockstep.message import Message


@dataclass(frozen=True, kw_only=True)
class Stochastic:
    """Few bits per coordinate, rounded at random so that it is right on average (QSGD): for gradients and changes.

        Enc(x) = sign(x) floor(|x| L / m + u),      Dec(k) = k m / L          L = 2^(bits-1) - 1, u uniform in [0, 1)

    m is the largest magnitude in a block of 4,096 coordinates, sent as one float32. The error is below m / L: it goes
    with the size of the vector. For models, whose size is much larger than their distance, use ``Modular``.

    Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, NeurIPS 2017, arXiv 1610.02132 (with the largest magnitude as the
    norm).

    Args:
        bits: Bits per coordinate, sign included, 2 to 16.
        engine: What codes: "numba" (on a CPU), "triton" (float32 on a GPU) or "torch" (anywhere); all give the same
            bytes. "auto": the first of these that can.

    Example:
        fs.DiLoCo(period=50, average=fs.averages.Coded(codec=fs.codecs.Stochastic(bits=8)))
    """

    bits: int = 8
    engine: str = "auto"

    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if check.whole(self, "bits", self.bits, at_least=2) > 16:
            raise ValueError(f"Stochastic.bits must be at most 16, got {self.bits}")
        check.one_of(self, "engine", self.engine, ("auto", *engines.NAMES))

    @property
    def name(self) -> str:
        """``Stochastic(8)``: the bytes of other numbers of bits mean another thing."""
        return f"Stochastic({self.bits})"

    def runs_on(self, v: Tensor) -> str:
        """Which engine codes vectors like this one."""
        return engines.choose(self.engine, v.device, engines.computed(v.dtype))

    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        """Levels, and each block's largest magnitude."""
        if not v.is_floating_point():
            raise TypeError(f"Stochastic codes floating-point vectors, got {v.dtype}")
        flat, plan = v.detach().to(engines.computed(v.dtype)).contiguous().view(-1), Plan(v.numel(), self.bits)
        data = torch.empty(plan.nbytes, dtype=torch.uint8, device=v.device)
        scales, codes = plan.split(data)
        if not load(self.runs_on(v)).encode(flat, int(rng.integers(2**32)), plan, scales.view(torch.float32), codes):
            most = largest(self, v)
            raise CodecRange(f"Stochastic cannot code the largest value, {most:.9g}: float32 cannot hold its scale")
        return Message(data, self.name, tuple(v.shape), v.dtype)

    def decode(self, message: Message, near: Tensor) -> Tensor:
        """The levels, at their blocks' scale."""
        plan = Plan(near.numel(), self.bits)
        readable(self, message, near, nbytes=plan.nbytes)
        scales, codes = plan.split(message.data.to(near.device))
        # A copy starts at an aligned address, which a slice of a network buffer need not.
        scales = scales.clone().view(torch.float32)
        if not bool(((scales >= LEAST_SCALE) & (scales < torch.inf)).all()):
            raise CodecRange("Stochastic cannot decode a message with scales that no vector has")
        out = torch.empty(plan.count, dtype=engines.computed(message.dtype), device=near.device)
        load(self.runs_on(out)).decode(scales, codes, plan, out)
        decoded = out.to(message.dtype).view(near.shape)
        # No code, garbled or not, stands for more than 2 m: scales far from the end of the range answer for all.
        room = torch.finfo(message.dtype).max / 4
        return decoded if bool((scales < room).all()) else sound(self, decoded)

    def error_bound(self, v: Tensor) -> Tensor:
        """One level of each coordinate's block, and what float32, or a shorter dtype, leaves of it."""
        plan = Plan(v.numel(), self.bits)
        largest = in_blocks(v.detach().double().flatten(), plan).abs().amax(1).clamp(min=LEAST_SCALE)
        bound = largest * (1 / plan.levels + 2.0**-22 + torch.finfo(v.dtype).eps)
        return bound.repeat_interleave(BLOCK)[: plan.count].view(v.shape)
