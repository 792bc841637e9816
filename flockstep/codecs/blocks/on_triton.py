"""Dither and packing for kernels on a GPU."""

# mypy: ignore-errors
# Triton reads the annotations of its kernels itself, and takes no others.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rounded(t, index, seed):
    """floor(t + u), up with the probability of what is left over: the hash of a counter, as in plan.mixed."""
    h = index.to(tl.uint32) * 0x9E3779B9 + seed.to(tl.uint32)
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) * 0x846CA68B
    h = (h ^ (h >> 16)) >> 8
    f = tl.floor(t)
    rest = (16777216 - h.to(tl.int32)).to(tl.float32) * 5.9604644775390625e-08
    return f.to(tl.int32) + (t - f >= rest).to(tl.int32)


@triton.jit
def store_codes(code, codes, index, block, padded, BITS: tl.constexpr, SIZE: tl.constexpr):
    """A block's codes to where they belong among all."""
    if BITS >= 8:
        tl.store(codes + index, (code & 255).to(tl.uint8), mask=index < padded)
        if BITS > 8:
            _pack(code >> 8, codes + padded, block, padded, BITS - 8, SIZE)
    else:
        _pack(code, codes, block, padded, BITS, SIZE)


@triton.jit
def load_codes(codes, index, padded, BITS: tl.constexpr):
    """A block's codes again; zeros after the last."""
    if BITS >= 8:
        c = tl.load(codes + index, mask=index < padded, other=0).to(tl.int32)
        if BITS > 8:
            c = c | (_unpack(codes + padded, index, padded, BITS - 8) << 8)
    else:
        c = _unpack(codes, index, padded, BITS)
    return c


@triton.jit
def _pack(code, codes, block, padded, BITS: tl.constexpr, SIZE: tl.constexpr):
    lanes = tl.arange(0, 8)
    eights = tl.reshape(code, (SIZE // 8, 8)).to(tl.uint64)
    words = tl.sum(eights << (lanes * BITS).to(tl.uint64)[None, :], 1)
    group = block * (SIZE // 8) + tl.arange(0, SIZE // 8)
    for byte in tl.static_range(BITS):
        value = ((words >> (8 * byte)) & 255).to(tl.uint8)
        tl.store(codes + group * BITS + byte, value, mask=group * 8 < padded)


@triton.jit
def _unpack(codes, index, padded, BITS: tl.constexpr):
    # The bits of one coordinate lie in at most two bytes.
    group = index // 8
    bit = (index % 8) * BITS
    first = group * BITS + bit // 8
    inside = index < padded
    low = tl.load(codes + first, mask=inside, other=0).to(tl.int32)
    more = inside & (bit // 8 + 1 < BITS)
    high = tl.load(codes + first + 1, mask=more, other=0).to(tl.int32)
    return ((low | (high << 8)) >> (bit % 8).to(tl.int32)) & ((1 << BITS) - 1)
