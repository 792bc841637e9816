"""The lattice in plain torch: slower, with temporaries, and everywhere. The engines are held to its integers."""

from __future__ import annotations

import torch
from torch import Tensor

from flockstep.parts.codecs.lattice.plan import BLOCK, LEAST_EXPONENT, NO_EXPONENT, PRECISION, Plan, weights

_MASK = 0xFFFFFFFF


def encode(v: Tensor, exponents: Tensor, seed: int, plan: Plan, data: Tensor) -> bool:
    """Write a vector's message into ``data``; False if a value is not finite."""
    padded = _blocks(v, plan)
    largest = padded.abs().amax(1)
    if not bool(largest.isfinite().all()):
        return False
    # The exponent of the largest value, as its bits have it: 2^(top-1) <= |x| < 2^top.
    top = torch.frexp(largest)[1].to(torch.int32)
    least = torch.where(largest > 0, (top - PRECISION).clamp(min=LEAST_EXPONENT), LEAST_EXPONENT)
    wanted = exponents.to(torch.int32)
    chosen = torch.where(wanted == NO_EXPONENT, least, torch.maximum(wanted, least))
    t = torch.ldexp(padded, -chosen[:, None])
    f = t.floor()
    index = torch.arange(plan.blocks * BLOCK, device=v.device).view(plan.blocks, BLOCK)
    u = _mixed((index * 0x9E3779B9 + seed) & _MASK) >> 8
    up = (t - f).double() >= (2**24 - u).double() * 2.0**-24
    k = f.long() + up.long()
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
    c = torch.zeros(plan.blocks * BLOCK, dtype=torch.int64, device=near.device)
    c[: plan.padded] = unpack(codes, plan.bits)
    c = c.view(plan.blocks, BLOCK)
    mine = _blocks(near, plan)
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


def _blocks(v: Tensor, plan: Plan) -> Tensor:
    padded = torch.zeros(plan.blocks * BLOCK, dtype=v.dtype, device=v.device)
    padded[: plan.count] = v
    return padded.view(plan.blocks, BLOCK)


def _checksums(high: Tensor, plan: Plan) -> Tensor:
    table = torch.from_numpy(weights().astype("int64")).to(high.device)
    # Products of 32-bit numbers, reduced before they are added: nothing leaves 64 bits.
    total = (((high & _MASK) * table) & _MASK).sum(1) & _MASK
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def _mixed(x: Tensor) -> Tensor:
    # As plan.mixed, in 64 bits, since torch has no unsigned arithmetic of 32.
    x = _times(x ^ (x >> 16), 0x7FEB352D)
    x = _times(x ^ (x >> 15), 0x846CA68B)
    return x ^ (x >> 16)


def _times(x: Tensor, factor: int) -> Tensor:
    # In two halves: a product of two 32-bit numbers may not fit into 63 bits.
    low = x * (factor & 0xFFFF)
    high = (x * (factor >> 16)) & 0xFFFF
    return (low + (high << 16)) & _MASK


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes of so many bits, eight in as many bytes; above 8 bits the low bytes first, then what is left, packed."""
    if bits > 8:
        return torch.cat([(codes & 0xFF).to(torch.uint8), pack(codes >> 8, bits - 8)])
    shifts = torch.arange(8, device=codes.device) * bits
    words = (codes.view(-1, 8) << shifts).sum(1)
    return words.view(-1, 1).view(torch.uint8).view(-1, 8)[:, :bits].reshape(-1)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The codes again."""
    if bits > 8:
        count = packed.numel() * 8 // bits
        return packed[:count].long() | (unpack(packed[count:], bits - 8) << 8)
    words = torch.zeros(packed.numel() // bits, 8, dtype=torch.uint8, device=packed.device)
    words[:, :bits] = packed.view(-1, bits)
    shifts = torch.arange(8, device=packed.device) * bits
    return ((words.view(torch.int64) >> shifts) & ((1 << bits) - 1)).view(-1)
