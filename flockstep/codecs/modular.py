"""Few bits per coordinate, whose error is that of the *distance* between sender and receiver, not of their size.

Enc(x) = floor(x/s + u) mod q                        q = 2^bits, u uniform in [0, 1): right on average
Dec(c, y) = s (c + q round((y/s - c) / q))           the point of colour c that is nearest to the receiver's own y

Right if |x - y| <= s (q-2)/2 in every coordinate, and then wrong by less than s. Out of that range the decoder would
return a point near the receiver itself and never say so; a checksum per block tells.
Davies, Gurunathan, Moshrefi, Ashkboos, Alistarh: new bounds for distributed mean estimation, ICLR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.codecs.blocks import engines as engines
from flockstep.codecs.blocks.blocks import BLOCK
from flockstep.codecs.blocks.on_torch import in_blocks
from flockstep.codecs.codec import finite, readable
from flockstep.codecs.lattice.lattice import LEAST_EXPONENT, NO_EXPONENT, PRECISION, Plan, exponents_for, load
from flockstep.errors import CodecRange
from flockstep.message import Message
from flockstep.parts.suitability import CHANGES, MEANS


class Reading(NamedTuple):
    """What a receiver made of a message."""

    vector: Tensor
    right: Tensor
    """Per block: whether its checksum is right, and its values finite."""
    distance: Tensor
    """Per block: how far the furthest coordinate lies from the receiver's own."""


@dataclass(frozen=True, kw_only=True)
class Modular:
    """Few bits per coordinate, with an error that goes with the distance of sender and receiver: for models.

        Enc(x) = floor(x/s + u) mod q                     q = 2^bits, u uniform in [0, 1), s from the reach, per block
        Dec(c, y) = s (c + q round((y/s - c) / q))        the point of colour c nearest to the receiver's own y

    Right if |x - y| <= s (q-2)/2 in every coordinate, and then wrong by less than s; a checksum per block of 4,096
    coordinates tells. Strategies measure distances as they go, choose s by them, and send again what could not be read.

    Davies, Gurunathan, Moshrefi, Ashkboos, Alistarh: new bounds for distributed mean estimation, ICLR 2021.

    Args:
        bits: Bits per coordinate, 3 to 16.
        reach: Largest distance, in any coordinate, between sender and receiver, in units of the vector. Strategies use
            it until they have measured distances.
        engine: What codes: "numba" (on a CPU), "triton" (float32 on a GPU) or "torch" (anywhere); all give the same
            bytes. "auto": the first of these that can.

    Example:
        fs.Swarm(period=4, codec=fs.codecs.Modular(bits=8))
    """

    bits: int = 8
    reach: float = 0.1
    engine: str = "auto"

    unbiased: ClassVar[bool] = True
    unsuited: ClassVar[dict[str, str]] = {
        CHANGES: "it codes what lies near a vector that the receiver has, and no receiver has one near a change",
        MEANS: "a receiver too far away must be able to ask again, which a mean of all nodes does not allow",
    }

    def __post_init__(self) -> None:
        if check.whole(self, "bits", self.bits, at_least=3) > 16:
            raise ValueError(f"Modular.bits must be at most 16, got {self.bits}")
        check.positive(self, "reach", self.reach)
        check.one_of(self, "engine", self.engine, ("auto", *engines.NAMES))

    @property
    def name(self) -> str:
        """``Modular(8)``: the bytes of other numbers of bits mean another thing."""
        return f"Modular({self.bits})"

    def runs_on(self, v: Tensor) -> str:
        """Which engine codes vectors like this one."""
        return engines.choose(self.engine, v.device, engines.computed(v.dtype))

    def encode(self, v: Tensor, rng: np.random.Generator, reach: Tensor | None = None) -> Message:
        """The colours of ``v``; with ``reach``, how far receivers may lie, per block."""
        flat, plan = self._flat(v), Plan(v.numel(), self.bits)
        if reach is None:
            reach = torch.full((plan.blocks,), self.reach)
        data = torch.empty(plan.nbytes, dtype=torch.uint8, device=v.device)
        seed = int(rng.integers(2**32))
        exponents = exponents_for(reach.cpu(), self.bits).to(v.device)
        if not load(self.runs_on(v)).encode(flat, exponents, seed, plan, data):
            finite(self, v)
        return Message(data, self.name, tuple(v.shape), v.dtype)

    def decode(self, message: Message, near: Tensor) -> Tensor:
        """The vector; CodecRange if a block lies out of reach."""
        reading = self.read(message, near)
        wrong = int((~reading.right).sum())
        if wrong:
            raise CodecRange(
                f"Modular cannot decode {wrong} of {reading.right.numel()} blocks: "
                "sender and receiver are further apart than the scale allows"
            )
        return reading.vector

    def read(self, message: Message, near: Tensor) -> Reading:
        """The vector, and what of it can be trusted."""
        plan = Plan(near.numel(), self.bits)
        readable(self, message, near, nbytes=plan.nbytes)
        flat = self._flat(near)
        out = torch.empty_like(flat)
        engine = load(self.runs_on(near))
        right, distance = engine.decode(message.data.to(near.device), flat, plan, out)
        vector = out.to(message.dtype)
        # No vector has what is not finite: with a garbled scale a checksum may be right by chance, or by intent.
        right = right & distance.isfinite()
        if vector.dtype != out.dtype:
            right = right & in_blocks(vector, plan).isfinite().all(1)
        return Reading(vector.view(near.shape), right, distance)

    def error_bound(self, v: Tensor) -> Tensor:
        """The scale of each coordinate's block."""
        plan = Plan(v.numel(), self.bits)
        padded = torch.zeros(plan.blocks * BLOCK, dtype=torch.double)
        padded[: plan.count] = v.detach().double().flatten().cpu()
        largest = padded.view(-1, BLOCK).abs().amax(1)
        least = (torch.frexp(largest)[1] - PRECISION).clamp(min=LEAST_EXPONENT)
        wanted = exponents_for(torch.full((plan.blocks,), self.reach), self.bits).to(torch.int32)
        exponents = torch.where(wanted == NO_EXPONENT, least, torch.maximum(wanted, least))
        scale = torch.ldexp(torch.ones(plan.blocks, dtype=torch.double), exponents)
        return scale.repeat_interleave(BLOCK)[: plan.count].view(v.shape)

    def _flat(self, v: Tensor) -> Tensor:
        if not v.is_floating_point():
            raise TypeError(f"Modular codes floating-point vectors, got {v.dtype}")
        return v.detach().to(engines.computed(v.dtype)).contiguous().view(-1)
