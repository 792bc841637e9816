"""Dither and packing for compiled loops on a CPU core.

Loops here are written so that they become vector instructions. numba widens what it adds or multiplies to 64 bits:
each result is brought back, as numpy would have it. It lets an index be negative: arrays are cut first, and then
counted from zero. And a sum or maximum of floats has an order, one of integers has none.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from flockstep.codecs.blocks.blocks import STRIDE

compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=False)
# What stands in place of the call is compiled once more wherever a constant is given.
_in_place = numba.njit(nogil=True, inline="always", error_model="numpy", fastmath=False)


def integers(dtype: Any) -> Any:
    """Of the size of these floats."""
    return np.dtype(f"int{8 * dtype.itemsize}")


@compiled
def first_counter(seed: Any, begin: Any) -> Any:
    """What the hash of a block counts from."""
    return np.uint32(seed + np.uint32(np.uint32(begin) * np.uint32(STRIDE)))


@_in_place
def lacking(i: Any, counter: Any) -> Any:
    """1 - u of a block's coordinate i, in units of 2^-24: whose fraction is no less rounds up."""
    h = np.uint32(np.uint32(i) * np.uint32(STRIDE) + counter)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(16))) * np.uint32(0x7FEB352D))
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(15))) * np.uint32(0x846CA68B))
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(16))) >> np.uint32(8))
    return np.int32(np.int32(16777216) - np.int32(h))


@compiled
def largest(x: Any, as_integers: Any) -> Any:
    """The largest magnitude in ``x``, whose bits are ``as_integers``; not finite if one value is not."""
    # As integers, magnitudes keep their order, and what is not finite is the largest of all.
    most = as_integers.dtype.type(np.iinfo(as_integers.dtype).max)
    found = as_integers.dtype.type(0)
    for i in range(as_integers.size):
        found = max(found, as_integers.dtype.type(as_integers[i] & most))
    return np.full(1, found, as_integers.dtype).view(x.dtype)[0]


@compiled
def pack(code: Any, filled: Any, bits: Any, codes: Any, begin: Any, padded: Any) -> None:
    """A block's codes to where they belong among all."""
    if bits < 8:
        _pack_short(code[:filled], 0, bits, codes[begin // 8 * bits :])
        return
    low = codes[begin : begin + filled]
    for i in range(filled):
        low[i] = np.uint8(code[i] & np.int32(255))
    if bits > 8:
        _pack_short(code[:filled], 8, bits - 8, codes[padded + begin // 8 * (bits - 8) :])


@compiled
def _pack_short(code: Any, shift: Any, bits: Any, packed: Any) -> None:
    groups = code.size // 8
    eights, packed = code.reshape(groups, 8), packed[: groups * bits].reshape(groups, bits)
    for group in range(groups):
        word = np.uint64(0)
        for lane in range(8):
            word |= np.uint64(np.uint32(eights[group, lane]) >> np.uint32(shift)) << np.uint64(lane * bits)
        for byte in range(bits):
            packed[group, byte] = np.uint8((word >> np.uint64(8 * byte)) & np.uint64(255))


@compiled
def unpack(code: Any, filled: Any, bits: Any, codes: Any, begin: Any, padded: Any) -> None:
    """A block's codes again."""
    low = codes[begin : begin + filled]
    if bits < 8:
        _unpack_short(code[:filled], bits, codes[begin // 8 * bits :])
    elif bits == 8:
        for i in range(filled):
            code[i] = low[i]
    else:
        _unpack_short(code[:filled], bits - 8, codes[padded + begin // 8 * (bits - 8) :])
        for i in range(filled):
            code[i] = np.int32(np.int32(code[i] << np.int32(8)) | np.int32(low[i]))


@compiled
def _unpack_short(code: Any, bits: Any, packed: Any) -> None:
    # Each with its width as a constant: with shifts that are known, eight codes are a few vector instructions.
    if bits == 1:
        _unpack_words(code, 1, packed)
    elif bits == 2:
        _unpack_words(code, 2, packed)
    elif bits == 3:
        _unpack_words(code, 3, packed)
    elif bits == 4:
        _unpack_words(code, 4, packed)
    elif bits == 5:
        _unpack_words(code, 5, packed)
    elif bits == 6:
        _unpack_words(code, 6, packed)
    elif bits == 7:
        _unpack_words(code, 7, packed)
    else:
        for i in range(code.size):
            code[i] = packed[i]


@_in_place
def _unpack_words(code: Any, bits: Any, packed: Any) -> None:
    mask, groups = np.uint64((1 << bits) - 1), code.size // 8
    eights, packed = code.reshape(groups, 8), packed[: groups * bits].reshape(groups, bits)
    for group in range(groups):
        word = np.uint64(0)
        for byte in range(bits):
            word |= np.uint64(packed[group, byte]) << np.uint64(8 * byte)
        for lane in range(8):
            eights[group, lane] = np.int32((word >> np.uint64(lane * bits)) & mask)
