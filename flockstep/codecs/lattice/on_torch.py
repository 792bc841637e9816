"""The lattice in plain torch: slower, with temporaries, and everywhere. The engines are held to its integers."""

from __future__ import annotations

import torch
from torch import Tensor

from flockstep.codecs.blocks.blocks import BLOCK
from flockstep.codecs.blocks.on_torch import MASK, in_blocks, pack, rounded, unpack_in_blocks
from flockstep.codecs.lattice.lattice import LEAST_EXPONENT, NO_EXPONENT, PRECISION, Plan, weights


def encode(v: Tensor, exponents: Tensor, seed: int, plan: Plan, data: Tensor) -> bool:
    """Write a vector's message into ``data``; False if a value is not finite."""
    padded = in_blocks(v, plan)
    largest = padded.abs().amax(1)
    if not bool(largest.isfinite().all()):
        return False
    # The exponent of the largest value, as its bits have it: 2^(top-1) <= |x| < 2^top.
    top = torch.frexp(largest)[1].to(torch.int32)
    least = torch.where(largest > 0, (top - PRECISION).clamp(min=LEAST_EXPONENT), LEAST_EXPONENT)
    wanted = exponents.to(torch.int32)
    chosen = torch.where(wanted == NO_EXPONENT, least, torch.maximum(wanted, least))
    k = rounded(torch.ldexp(padded, -chosen[:, None]), seed)
    sums, kept, codes = plan.split(data)
    high = k >> plan.bits
    sums.copy_(_checksums(high, plan).view(torch.uint8))
    kept.copy_(chosen)
    codes.copy_(pack((k & ((1 << plan.bits) - 1)).view(-1)[: plan.padded], plan.bits))
    return True


def decode(data: Tensor, near: Tensor, plan: Plan, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the vector nearest to ``near`` into ``out``; per block, whether it checks, and the largest distance."""
    sums, kept, codes = plan.split(data)
    q, exponents = 1 << plan.bits, kept.to(torch.int32)[:, None]
    c = unpack_in_blocks(codes, plan)
    mine = in_blocks(near, plan)
    t = torch.ldexp(mine, -exponents)
    high = torch.floor((t - c.to(t.dtype)) * (1.0 / q) + 0.5).clamp(-(2**31), 2**31 - 1).long()
    inside = (torch.arange(plan.blocks * BLOCK, device=near.device) < plan.count).view(plan.blocks, BLOCK)
    high = torch.where(inside, high, 0)
    k = c + q * high
    value = torch.ldexp(k.to(mine.dtype), exponents)
    distance = torch.where(inside, (value - mine).abs(), torch.zeros_like(mine)).amax(1)
    out.copy_(value.view(-1)[: plan.count])
    right = _checksums(high, plan).view(torch.uint8).view(-1, 4) == sums.view(-1, 4)
    return right.all(1), distance.float()


def _checksums(high: Tensor, plan: Plan) -> Tensor:
    table = torch.from_numpy(weights().astype("int64")).to(high.device)
    # Products of 32-bit numbers, reduced before they are added: nothing leaves 64 bits.
    total = (((high & MASK) * table) & MASK).sum(1) & MASK
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)
