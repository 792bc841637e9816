"""The lattice on a CPU core: each block once through the cache, without the interpreter's lock."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from flockstep.parts.codecs.lattice.plan import BLOCK, LEAST_EXPONENT, NO_EXPONENT, PRECISION, Plan, weights

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")


def encode(v: Tensor, exponents: Tensor, seed: int, plan: Plan, data: Tensor) -> bool:
    """Write a vector's message into ``data``; False if a value is not finite."""
    sums, kept, codes = plan.split(data)
    array = v.numpy()
    fine: bool = _encode(
        array,
        exponents.numpy(),
        np.uint32(seed),
        plan.bits,
        plan.padded,
        weights(),
        sums.numpy(),
        kept.numpy(),
        codes.numpy(),
    )
    return fine


def decode(data: Tensor, near: Tensor, plan: Plan, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the vector nearest to ``near`` into ``out``; per block, whether it checks, and the largest distance."""
    sums, kept, codes = plan.split(data)
    right = torch.empty(plan.blocks, dtype=torch.bool)
    distance = torch.empty(plan.blocks, dtype=torch.float32)
    _decode(
        near.numpy(),
        plan.bits,
        plan.padded,
        weights(),
        sums.numpy(),
        kept.numpy(),
        codes.numpy(),
        out.numpy(),
        right.numpy(),
        distance.numpy(),
    )
    return right, distance


@_compiled
def _encode(
    v: Any, exponents: Any, seed: Any, bits: Any, padded: Any, table: Any, sums: Any, kept: Any, codes: Any
) -> bool:
    count = v.size
    mask = np.int32((1 << bits) - 1)
    code = np.empty(BLOCK, np.int32)
    for block in range(exponents.size):
        begin = block * BLOCK
        size = min(BLOCK, count - begin)
        x = v[begin : begin + size]
        largest = _largest(x)
        if not np.isfinite(largest):
            return False
        exponent = _exponent(largest, exponents[block])
        kept[block] = exponent
        total = _integers(
            x, np.float64(2.0) ** -exponent, seed + np.uint32(begin) * np.uint32(0x9E3779B9), bits, table, code
        )
        _write_sum(sums, block, total)
        filled = min(BLOCK, padded - begin)
        for i in range(size, filled):
            code[i] = 0
        for i in range(size):
            code[i] &= mask
        _pack(code, filled, bits, codes, begin, padded)
    return True


@_compiled
def _largest(x: Any) -> Any:
    # Zero times anything finite is zero: one sum tells whether all are.
    largest, nothing = x.dtype.type(0), x.dtype.type(0)
    for i in range(x.size):
        a = abs(x[i])
        largest = max(largest, a)
        nothing += a * x.dtype.type(0)
    return largest + nothing


@_compiled
def _exponent(largest: Any, wanted: Any) -> int:
    least = LEAST_EXPONENT
    if largest > 0:
        _, top = math.frexp(float(largest))
        least = max(least, int(top) - PRECISION)
    return least if wanted == NO_EXPONENT else max(int(wanted), least)


@_compiled
def _integers(x: Any, inverse: Any, seed: Any, bits: Any, table: Any, code: Any) -> Any:
    """The integers of a block into ``code``; the checksum of their high parts."""
    total = np.uint32(0)
    scale = x.dtype.type(inverse)
    unit, shift = x.dtype.type(2.0**-24), np.int32(bits)
    for i in range(x.size):
        # numba widens what it adds or multiplies to 64 bits; each result is brought back, as numpy would have it.
        h = np.uint32(np.uint32(i) * np.uint32(0x9E3779B9) + seed)
        h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(16))) * np.uint32(0x7FEB352D))
        h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(15))) * np.uint32(0x846CA68B))
        h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(16))) >> np.uint32(8))
        t = x[i] * scale
        f = np.floor(t)
        rest = x.dtype.type(np.int32(np.int32(16777216) - np.int32(h))) * unit
        k = np.int32(np.int32(f) + (np.int32(1) if t - f >= rest else np.int32(0)))
        code[i] = k
        total = np.uint32(total + np.uint32(np.uint32(np.int32(k >> shift)) * table[i]))
    return total


@_compiled
def _write_sum(sums: Any, block: Any, total: Any) -> None:
    for byte in range(4):
        sums[4 * block + byte] = np.uint8((total >> np.uint32(8 * byte)) & np.uint32(255))


@_compiled
def _read_sum(sums: Any, block: Any) -> Any:
    total = np.uint32(0)
    for byte in range(4):
        total |= np.uint32(sums[4 * block + byte]) << np.uint32(8 * byte)
    return total


@_compiled
def _pack(code: Any, filled: Any, bits: Any, codes: Any, begin: Any, padded: Any) -> None:
    if bits >= 8:
        for i in range(filled):
            codes[begin + i] = np.uint8(code[i] & 255)
        if bits > 8:
            _pack_short(code, filled, 8, bits - 8, codes, padded + begin // 8 * (bits - 8))
    else:
        _pack_short(code, filled, 0, bits, codes, begin // 8 * bits)


@_compiled
def _pack_short(code: Any, filled: Any, shift: Any, bits: Any, codes: Any, at: Any) -> None:
    for group in range(filled // 8):
        word = np.uint64(0)
        for lane in range(8):
            word |= np.uint64(np.uint32(code[8 * group + lane]) >> np.uint32(shift)) << np.uint64(lane * bits)
        for byte in range(bits):
            codes[at + group * bits + byte] = np.uint8((word >> np.uint64(8 * byte)) & np.uint64(255))


@_compiled
def _unpack_short(code: Any, filled: Any, shift: Any, bits: Any, codes: Any, at: Any) -> None:
    mask = np.uint64((1 << bits) - 1)
    for group in range(filled // 8):
        word = np.uint64(0)
        for byte in range(bits):
            word |= np.uint64(codes[at + group * bits + byte]) << np.uint64(8 * byte)
        for lane in range(8):
            code[8 * group + lane] |= np.int32((word >> np.uint64(lane * bits)) & mask) << np.int32(shift)


@_compiled
def _decode(
    near: Any, bits: Any, padded: Any, table: Any, sums: Any, kept: Any, codes: Any, out: Any, right: Any, distance: Any
) -> None:
    count = near.size
    code = np.empty(BLOCK, np.int32)
    for block in range(kept.size):
        begin = block * BLOCK
        size, filled = min(BLOCK, count - begin), min(BLOCK, padded - begin)
        if bits >= 8:
            for i in range(filled):
                code[i] = codes[begin + i]
            if bits > 8:
                _unpack_short(code, filled, 8, bits - 8, codes, padded + begin // 8 * (bits - 8))
        else:
            code[:filled] = 0
            _unpack_short(code, filled, 0, bits, codes, begin // 8 * bits)
        exponent = int(kept[block])
        total, furthest = _nearest(near[begin : begin + size], code, exponent, bits, table, out[begin : begin + size])
        right[block] = total == _read_sum(sums, block)
        distance[block] = furthest


@_compiled
def _nearest(y: Any, code: Any, exponent: Any, bits: Any, table: Any, out: Any) -> Any:
    total, furthest = np.uint32(0), y.dtype.type(0)
    inverse, scale = y.dtype.type(2.0**-exponent), y.dtype.type(2.0**exponent)
    part, half = y.dtype.type(2.0**-bits), y.dtype.type(0.5)
    most, shift = y.dtype.type(2**30), np.int32(bits)
    for i in range(y.size):
        c = code[i]
        z = np.floor((y[i] * inverse - y.dtype.type(c)) * part + half)
        z = min(max(z, -most), most)
        high = np.int32(z)
        value = y.dtype.type(np.int32(c + np.int32(high << shift))) * scale
        out[i] = value
        furthest = max(furthest, abs(value - y[i]))
        total = np.uint32(total + np.uint32(np.uint32(high) * table[i]))
    return total, furthest
