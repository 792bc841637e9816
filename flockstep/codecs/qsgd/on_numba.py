"""QSGD's levels on a CPU core: each block once through the cache, without the interpreter's lock."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from flockstep.codecs.blocks.blocks import BLOCK
from flockstep.codecs.blocks.on_numba import compiled, first_counter, integers, lacking, largest, pack, unpack
from flockstep.codecs.qsgd.levels import LEAST_SCALE, Plan


def encode(v: Tensor, seed: int, plan: Plan, scales: Tensor, codes: Tensor) -> bool:
    """Write a vector's scales and codes; False if a value is not finite, or its scale not in float32."""
    array = v.numpy()
    as_integers = array.view(integers(array.dtype))
    fine: bool = _encode(array, as_integers, np.uint32(seed), plan.bits, plan.padded, scales.numpy(), codes.numpy())
    return fine


def decode(scales: Tensor, codes: Tensor, plan: Plan, out: Tensor) -> None:
    """Write the vector into ``out``."""
    _decode(scales.numpy(), codes.numpy(), plan.bits, plan.padded, out.numpy())


@compiled
def _encode(v: Any, as_integers: Any, seed: Any, bits: Any, padded: Any, scales: Any, codes: Any) -> bool:
    levels = np.int32((1 << (bits - 1)) - 1)
    code = np.empty(BLOCK, np.int32)
    for block in range(scales.size):
        begin = block * BLOCK
        end = min(begin + BLOCK, v.size)
        x = v[begin:end]
        m = _scale(largest(x, as_integers[begin:end]))
        if not np.isfinite(m):
            return False
        scales[block] = m
        _levels(x, levels / np.float64(m), levels, first_counter(seed, begin), code)
        filled = min(BLOCK, padded - begin)
        for i in range(x.size, filled):
            code[i] = levels
        pack(code, filled, bits, codes, begin, padded)
    return True


@compiled
def _scale(m: Any) -> Any:
    """In float32, and never below: above its scale a value could not be right on average."""
    short = np.float32(m)
    if np.float64(short) < np.float64(m):
        short = np.nextafter(short, np.float32(np.inf))
    # Not max(): a NaN must come through.
    return np.float32(LEAST_SCALE) if short < np.float32(LEAST_SCALE) else short


@compiled
def _levels(x: Any, exact_ratio: Any, levels: Any, counter: Any, code: Any) -> None:
    ratio, unit = x.dtype.type(exact_ratio), x.dtype.type(2.0**-24)
    for i in range(x.size):
        t = abs(x[i]) * ratio
        f = np.floor(t)
        rest = x.dtype.type(lacking(i, counter)) * unit
        k = np.int32(np.int32(f) + (np.int32(1) if t - f >= rest else np.int32(0)))
        k = min(k, levels)
        code[i] = np.int32(levels - k) if x[i] < 0 else np.int32(levels + k)


@compiled
def _decode(scales: Any, codes: Any, bits: Any, padded: Any, out: Any) -> None:
    levels = np.int32((1 << (bits - 1)) - 1)
    code = np.empty(BLOCK, np.int32)
    for block in range(scales.size):
        begin = block * BLOCK
        unpack(code, min(BLOCK, padded - begin), bits, codes, begin, padded)
        values = out[begin : min(begin + BLOCK, out.size)]
        step = out.dtype.type(np.float64(scales[block]) / levels)
        for i in range(values.size):
            values[i] = out.dtype.type(np.int32(code[i] - levels)) * step
