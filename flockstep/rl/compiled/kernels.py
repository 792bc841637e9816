"""The matrix products of a small network, written so that a compiler turns their inner loops into vector instructions.

Matrices of a hidden layer lie as (in, out), those of a head as (out, in): every innermost loop then runs over
neighbours in memory, and a head of two outputs is as fast as a layer of 64.
"""

from __future__ import annotations

import math
from typing import Any

import numba
from numba.core import types
from numba.extending import overload

compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=True)
"""Sums may be taken in any order; nothing here divides by zero or looks at a NaN."""

_FARTHEST = 8.4
"""Beyond, tanh is 1 in float32."""
_UPPER = (0.999999989500791, 0.13419579126234848, 0.0035416166794670243, 2.1379761216100712e-05, 1.4457834315422388e-08)
_LOWER = (1.0, 0.4675290295884542, 0.02605143682911897, 0.0003361426011130668, 8.219953751097988e-07)
"""tanh(x) = x upper(x^2) / lower(x^2), fitted to a relative error of 1e-8: a loop of it is vector instructions."""


def tanh(x: Any) -> Any:
    """tanh: exact in float64; to 4e-7, a few roundings, in float32."""
    return math.tanh(x)


@overload(tanh, inline="always")
def _tanh_for(x: Any) -> Any:
    if x != types.float32:

        def exact(x: Any) -> Any:
            return math.tanh(x)

        return exact
    single = types.float32
    (a0, a1, a2, a3, a4), (b0, b1, b2, b3, b4) = _UPPER, _LOWER

    def fitted(x: Any) -> Any:
        y = min(max(x, single(-_FARTHEST)), single(_FARTHEST))
        q = y * y
        upper = single(a0) + q * (single(a1) + q * (single(a2) + q * (single(a3) + q * single(a4))))
        lower = single(b0) + q * (single(b1) + q * (single(b2) + q * (single(b3) + q * single(b4))))
        return y * upper / lower

    return fitted


@compiled
def add_product(x: Any, w: Any, y: Any) -> None:
    """y += x w, for x (rows, in) and w (in, out)."""
    rows, n_in = x.shape
    n_out = w.shape[1]
    r = 0
    # Two rows and four inputs at once: what is loaded of w is used twice, and y is stored once for four products.
    while r + 2 <= rows:
        i = 0
        while i + 4 <= n_in:
            a0, a1, a2, a3 = x[r, i], x[r, i + 1], x[r, i + 2], x[r, i + 3]
            c0, c1, c2, c3 = x[r + 1, i], x[r + 1, i + 1], x[r + 1, i + 2], x[r + 1, i + 3]
            for j in range(n_out):
                w0, w1, w2, w3 = w[i, j], w[i + 1, j], w[i + 2, j], w[i + 3, j]
                y[r, j] += a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
                y[r + 1, j] += c0 * w0 + c1 * w1 + c2 * w2 + c3 * w3
            i += 4
        while i < n_in:
            a, c = x[r, i], x[r + 1, i]
            for j in range(n_out):
                y[r, j] += a * w[i, j]
                y[r + 1, j] += c * w[i, j]
            i += 1
        r += 2
    if r < rows:
        for i in range(n_in):
            a = x[r, i]
            for j in range(n_out):
                y[r, j] += a * w[i, j]


@compiled
def add_outer(x: Any, dy: Any, g: Any) -> None:
    """g += x' dy, for x (rows, in), dy (rows, out) and g (in, out)."""
    rows, n_in = x.shape
    n_out = dy.shape[1]
    for i in range(n_in):
        r = 0
        while r + 8 <= rows:
            a0, a1, a2, a3 = x[r, i], x[r + 1, i], x[r + 2, i], x[r + 3, i]
            a4, a5, a6, a7 = x[r + 4, i], x[r + 5, i], x[r + 6, i], x[r + 7, i]
            for j in range(n_out):
                first = a0 * dy[r, j] + a1 * dy[r + 1, j] + a2 * dy[r + 2, j] + a3 * dy[r + 3, j]
                second = a4 * dy[r + 4, j] + a5 * dy[r + 5, j] + a6 * dy[r + 6, j] + a7 * dy[r + 7, j]
                g[i, j] += first + second
            r += 8
        while r < rows:
            a = x[r, i]
            for j in range(n_out):
                g[i, j] += a * dy[r, j]
            r += 1


@compiled
def head_outputs(x: Any, w: Any, b: Any, y: Any) -> None:
    """y = x w' + b, for w (out, in) of few outputs."""
    for r in range(x.shape[0]):
        for j in range(w.shape[0]):
            total = b[j]
            for i in range(w.shape[1]):
                total += x[r, i] * w[j, i]
            y[r, j] = total


@compiled
def add_rows(x: Any, total: Any) -> None:
    """total += the sum of all rows."""
    for r in range(x.shape[0]):
        for j in range(x.shape[1]):
            total[j] += x[r, j]


@compiled
def transpose(w: Any, out: Any) -> None:
    """out = w'."""
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            out[j, i] = w[i, j]


@compiled
def tanh_all(y: Any) -> None:
    """Every number of a matrix."""
    for r in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[r, j] = tanh(y[r, j])


@compiled
def through_tanh(y: Any, dy: Any) -> None:
    """dy *= 1 - y^2, the slope of tanh where it gave y."""
    one = y.dtype.type(1)
    for r in range(y.shape[0]):
        for j in range(y.shape[1]):
            dy[r, j] *= one - y[r, j] * y[r, j]
