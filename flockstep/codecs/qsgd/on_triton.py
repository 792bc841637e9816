"""QSGD's levels on a GPU: one program per block, one read of the vector and one write of the codes."""

# mypy: ignore-errors
# Triton reads the annotations of its kernels itself, and takes no others.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flockstep.codecs.blocks.blocks import BLOCK
from flockstep.codecs.blocks.on_triton import load_codes, rounded, store_codes
from flockstep.codecs.qsgd.levels import LEAST_SCALE, Plan


def encode(v: Tensor, seed: int, plan: Plan, scales: Tensor, codes: Tensor) -> bool:
    """Write a vector's scales and codes; False if a value is not finite."""
    bad = torch.zeros(1, dtype=torch.int32, device=v.device)
    launch_encode(v, seed, plan, scales, codes, bad)
    return not bool(bad)


def decode(scales: Tensor, codes: Tensor, plan: Plan, out: Tensor) -> None:
    """Write the vector into ``out``."""
    if plan.count:
        shape = {"BITS": plan.bits, "SIZE": BLOCK, "LEVELS": plan.levels}
        _decode[(plan.blocks,)](scales, codes, out, plan.count, plan.padded, **shape)


def launch_encode(v: Tensor, seed: int, plan: Plan, scales: Tensor, codes: Tensor, bad: Tensor) -> None:
    """The kernel alone: nothing is waited for."""
    if plan.count:
        shape = {"BITS": plan.bits, "SIZE": BLOCK, "LEVELS": plan.levels, "LEAST": LEAST_SCALE}
        # A fused multiply-add would keep bits of |x| L/m that a product rounded on its own has lost.
        _encode[(plan.blocks,)](v, seed, scales, codes, bad, plan.count, plan.padded, **shape, enable_fp_fusion=False)


@triton.jit
def _encode(
    v,
    seed,
    scales,
    codes,
    bad,
    count,
    padded,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    LEVELS: tl.constexpr,
    LEAST: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    index = block * SIZE + tl.arange(0, SIZE)
    x = tl.load(v + index, mask=index < count, other=0.0)
    # As integers, magnitudes keep their order, and what is not finite is the largest of all.
    largest = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
    if largest >= 0x7F800000:
        tl.store(bad, 1)
    m = tl.maximum(largest.to(tl.float32, bitcast=True), LEAST)
    tl.store(scales + block, m)
    # Only in float64 is a quotient rounded as it should be.
    ratio = (tl.full((), LEVELS, tl.float64) / m.to(tl.float64)).to(tl.float32)
    k = tl.minimum(rounded(tl.abs(x) * ratio, index, seed), LEVELS)
    store_codes(LEVELS + tl.where(x < 0, -k, k), codes, index, block, padded, BITS, SIZE)


@triton.jit
def _decode(scales, codes, out, count, padded, BITS: tl.constexpr, SIZE: tl.constexpr, LEVELS: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    index = block * SIZE + tl.arange(0, SIZE)
    step = (tl.load(scales + block).to(tl.float64) / tl.full((), LEVELS, tl.float64)).to(tl.float32)
    value = (load_codes(codes, index, padded, BITS) - LEVELS).to(tl.float32) * step
    tl.store(out + index, value, mask=index < count)
