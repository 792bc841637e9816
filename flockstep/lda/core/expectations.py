"""exp(psi(x)) in single precision, as plain arithmetic that a compiler turns into vector instructions.

    exp(psi(x)) = (z + 1/(24 z) - 37/(5760 z^3)) exp(-s),   z = x + 3.5,   s = 1/x + 1/(x+1) + 1/(x+2) + 1/(x+3)

The exponential is a polynomial for the fraction of the power of two and the power's own bits for the rest: a call to
the C library in the loop would keep it from being vectorised.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

# Sums may be taken in any order, which vectors need; infinities and NaN keep their meaning.
compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})
in_place = numba.njit(nogil=True, inline="always", error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})

_LOG2_E = np.float32(1.4426950408889634)
# Nothing beside any weight that counts; products of two such stay clear of subnormal numbers, which are slow.
_LEAST = np.float32(-32.0)
# 2^f on [-1/2, 1/2], Taylor terms of exp(f ln 2); the first one left out is below 2e-6.
_C1, _C2, _C3, _C4, _C5 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 6))
_ONE, _HALF, _TWO, _THREE, _SHIFT = (np.float32(x) for x in (1.0, 0.5, 2.0, 3.0, 3.5))
_FIRST, _SECOND = np.float32(1 / 24), np.float32(37 / 5760)


@intrinsic
def _float_of_bits(context: Any, bits: Any) -> Any:
    """The single-precision number with these bits."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), code


@in_place
def small_exp(x: Any) -> Any:
    """exp(x) for x <= 0, to 3e-6; what would be below exp(-32) is exp(-32)."""
    y = max(x, _LEAST) * _LOG2_E
    whole = np.int32(y - _HALF)
    f = y - np.float32(whole)
    power = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * _C5))))
    return power * _float_of_bits(np.int32((whole + np.int32(127)) << np.int32(23)))  # type: ignore[call-arg]


@in_place
def exp_psi(x: Any) -> Any:
    """exp(psi(x)) for x >= 0, to 1e-5."""
    z = x + _SHIFT
    q = x * (x + _THREE)
    s = (_TWO * x + _THREE) * (_TWO * q + _TWO) / (q * (q + _TWO))
    inverse = _ONE / z
    return (z + inverse * (_FIRST - _SECOND * inverse * inverse)) * small_exp(-s)


@compiled
def weights(x: Any, factor: Any, vb: bool, out: Any) -> None:
    """What a topic's pseudo-count weighs: exp(psi(x)) for variational Bayes, x itself for MAP; times ``factor``."""
    if vb:
        for k in range(x.size):
            out[k] = exp_psi(x[k]) * factor[k]
    else:
        for k in range(x.size):
            out[k] = x[k] * factor[k]
