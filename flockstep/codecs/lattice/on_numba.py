"""The lattice on a CPU core: each block once through the cache, without the interpreter's lock."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flockstep.codecs.blocks.blocks import BLOCK
from flockstep.codecs.blocks.on_numba import compiled, first_counter, integers, lacking, largest, pack, unpack
from flockstep.codecs.lattice.lattice import LEAST_EXPONENT, NO_EXPONENT, PRECISION, Plan, weights


def encode(v: Tensor, exponents: Tensor, seed: int, plan: Plan, data: Tensor) -> bool:
    """Write a vector's message into ``data``; False if a value is not finite."""
    sums, kept, codes = plan.split(data)
    array = v.numpy()
    fine: bool = _encode(
        array,
        array.view(integers(array.dtype)),
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
    # How far each coordinate of a block lies from the receiver's own.
    away = np.empty(BLOCK, near.numpy().dtype)
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
        away,
        away.view(integers(away.dtype)),
    )
    return right, distance


@compiled
def _encode(
    v: Any,
    as_integers: Any,
    exponents: Any,
    seed: Any,
    bits: Any,
    padded: Any,
    table: Any,
    sums: Any,
    kept: Any,
    codes: Any,
) -> bool:
    count = v.size
    mask = np.int32((1 << bits) - 1)
    code = np.empty(BLOCK, np.int32)
    for block in range(exponents.size):
        begin = block * BLOCK
        size = min(BLOCK, count - begin)
        x = v[begin : begin + size]
        furthest = largest(x, as_integers[begin : begin + size])
        if not np.isfinite(furthest):
            return False
        exponent = _exponent(furthest, exponents[block])
        kept[block] = exponent
        total = _integers(x, np.float64(2.0) ** -exponent, first_counter(seed, begin), bits, table, code)
        _write_sum(sums, block, total)
        filled = min(BLOCK, padded - begin)
        for i in range(size, filled):
            code[i] = 0
        for i in range(size):
            code[i] &= mask
        pack(code, filled, bits, codes, begin, padded)
    return True


@compiled
def _exponent(furthest: Any, wanted: Any) -> int:
    least = LEAST_EXPONENT
    if furthest > 0:
        _, top = math.frexp(float(furthest))
        least = max(least, int(top) - PRECISION)
    return least if wanted == NO_EXPONENT else max(int(wanted), least)


@compiled
def _integers(x: Any, inverse: Any, counter: Any, bits: Any, table: Any, code: Any) -> Any:
    """The integers of a block into ``code``; the checksum of their high parts."""
    total = np.uint32(0)
    scale = x.dtype.type(inverse)
    unit, shift = x.dtype.type(2.0**-24), np.int32(bits)
    for i in range(x.size):
        t = x[i] * scale
        f = np.floor(t)
        rest = x.dtype.type(lacking(i, counter)) * unit
        k = np.int32(np.int32(f) + (np.int32(1) if t - f >= rest else np.int32(0)))
        code[i] = k
        total = np.uint32(total + np.uint32(np.uint32(np.int32(k >> shift)) * table[i]))
    return total


@compiled
def _write_sum(sums: Any, block: Any, total: Any) -> None:
    for byte in range(4):
        sums[4 * block + byte] = np.uint8((total >> np.uint32(8 * byte)) & np.uint32(255))


@compiled
def _read_sum(sums: Any, block: Any) -> Any:
    total = np.uint32(0)
    for byte in range(4):
        total |= np.uint32(sums[4 * block + byte]) << np.uint32(8 * byte)
    return total


@compiled
def _decode(
    near: Any,
    bits: Any,
    padded: Any,
    table: Any,
    sums: Any,
    kept: Any,
    codes: Any,
    out: Any,
    right: Any,
    distance: Any,
    away: Any,
    away_as_integers: Any,
) -> None:
    count = near.size
    code = np.empty(BLOCK, np.int32)
    for block in range(kept.size):
        begin = block * BLOCK
        size, filled = min(BLOCK, count - begin), min(BLOCK, padded - begin)
        unpack(code, filled, bits, codes, begin, padded)
        y, value = near[begin : begin + size], out[begin : begin + size]
        right[block] = _nearest(y, code, int(kept[block]), bits, table, value, away) == _read_sum(sums, block)
        distance[block] = largest(away, away_as_integers[:size])


@compiled
def _nearest(y: Any, code: Any, exponent: Any, bits: Any, table: Any, out: Any, away: Any) -> Any:
    """The points nearest to ``y``, and how far away; the checksum of their high parts."""
    total = np.uint32(0)
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
        away[i] = value - y[i]
        total = np.uint32(total + np.uint32(np.uint32(high) * table[i]))
    return total
