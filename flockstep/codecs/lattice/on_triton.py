"""The lattice on a GPU: one program per block, one read of the vector and one write of the codes."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from flockstep.codecs.blocks.blocks import BLOCK
from flockstep.codecs.blocks.on_triton import load_codes, rounded, store_codes
from flockstep.codecs.lattice.lattice import LEAST_EXPONENT, NO_EXPONENT, PRECISION, Plan, weights


def encode(v: Tensor, exponents: Tensor, seed: int, plan: Plan, data: Tensor) -> bool:
    """Write a vector's message into ``data``; False if a value is not finite."""
    bad = torch.zeros(1, dtype=torch.int32, device=v.device)
    launch_encode(v, exponents.to(v.device), seed, plan, data, bad)
    return not bool(bad)


def decode(data: Tensor, near: Tensor, plan: Plan, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the vector nearest to ``near`` into ``out``; per block, whether it checks, and the largest distance."""
    right = torch.empty(plan.blocks, dtype=torch.bool, device=near.device)
    distance = torch.empty(plan.blocks, dtype=torch.float32, device=near.device)
    launch_decode(data, near, plan, out, right, distance)
    return right, distance


def launch_encode(v: Tensor, exponents: Tensor, seed: int, plan: Plan, data: Tensor, bad: Tensor) -> None:
    """The kernel alone: nothing is waited for."""
    if plan.count:
        sums, kept, codes = plan.split(data)
        table = _table(v.device)
        _encode[(plan.blocks,)](
            v, exponents, seed, table, sums, kept, codes, bad, plan.count, plan.padded, BITS=plan.bits, **_constants()
        )


def launch_decode(data: Tensor, near: Tensor, plan: Plan, out: Tensor, right: Tensor, distance: Tensor) -> None:
    """The kernel alone: nothing is waited for."""
    if plan.count:
        sums, kept, codes = plan.split(data)
        table = _table(near.device)
        _decode[(plan.blocks,)](
            near, table, sums, kept, codes, out, right, distance, plan.count, plan.padded, BITS=plan.bits, SIZE=BLOCK
        )


def _constants() -> dict[str, int]:
    return {"SIZE": BLOCK, "LEAST": LEAST_EXPONENT, "NONE": NO_EXPONENT, "PRECISION": PRECISION}


@lru_cache(maxsize=8)
def _table(device: torch.device) -> Tensor:
    return torch.from_numpy(weights().view("int32").copy()).to(device)


@triton.jit
def _power(exponent):
    # 2^exponent, exactly: the bits of the number itself.
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _encode(
    v,
    wanted,
    seed,
    table,
    sums,
    kept,
    codes,
    bad,
    count,
    padded,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    LEAST: tl.constexpr,
    NONE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, SIZE)
    index = block * SIZE + lane
    x = tl.load(v + index, mask=index < count, other=0.0)
    # As integers, magnitudes keep their order, and what is not finite is the largest of all.
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(magnitude, 0)
    if largest >= 0x7F800000:
        tl.store(bad, 1)
    top = tl.where(largest >= 0x00800000, (largest >> 23) - 126, -126)
    least = tl.where(largest > 0, tl.maximum(top - PRECISION, LEAST), LEAST)
    asked = tl.load(wanted + block).to(tl.int32)
    exponent = tl.where(asked == NONE, least, tl.maximum(asked, least))
    tl.store(kept + block, exponent.to(tl.int8))
    k = tl.where(index < count, rounded(x * _power(-exponent), index, seed), 0)
    total = tl.sum((k >> BITS) * tl.load(table + lane), 0)
    _store_sum(sums, block, total)
    store_codes(k & ((1 << BITS) - 1), codes, index, block, padded, BITS, SIZE)


@triton.jit
def _store_sum(sums, block, total):
    for byte in tl.static_range(4):
        tl.store(sums + 4 * block + byte, ((total >> (8 * byte)) & 255).to(tl.uint8))


@triton.jit
def _decode(
    near,
    table,
    sums,
    kept,
    codes,
    out,
    right,
    distance,
    count,
    padded,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, SIZE)
    index = block * SIZE + lane
    inside = index < count
    c = load_codes(codes, index, padded, BITS)
    exponent = tl.load(kept + block).to(tl.int32)
    y = tl.load(near + index, mask=inside, other=0.0)
    part: tl.constexpr = 1.0 / (1 << BITS)
    z = tl.floor((y * _power(-exponent) - c.to(tl.float32)) * part + 0.5)
    high = tl.minimum(tl.maximum(z, -1073741824.0), 1073741824.0).to(tl.int32)
    high = tl.where(inside, high, 0)
    value = (c + (high << BITS)).to(tl.float32) * _power(exponent)
    tl.store(out + index, value, mask=inside)
    tl.store(distance + block, tl.max(tl.where(inside, tl.abs(value - y), 0.0), 0))
    total = tl.sum(high * tl.load(table + lane), 0)
    said = tl.zeros((), tl.int32)
    for byte in tl.static_range(4):
        said = said | (tl.load(sums + 4 * block + byte).to(tl.int32) << (8 * byte))
    tl.store(right + block, said == total)
