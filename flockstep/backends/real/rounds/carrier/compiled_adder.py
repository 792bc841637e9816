"""The same sums in one pass each, compiled: a pass over memory costs as much as all else that is done to it here.

Nothing is multiplied, so that no machine can round differently by fusing a product and a sum.
"""

from __future__ import annotations

from typing import Any

import numba

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=False)


def mean(vectors: list[Any], out: Any, difference: Any) -> None:
    """Write the mean of two or more vectors to ``out``; ``difference`` is room for one."""
    first, *rest, last = vectors
    if not rest:
        _mean_of_two(first, last, out)
        return
    _begin(first, rest[0], difference)
    for one in rest[1:]:
        _go_on(first, one, difference)
    _end(first, last, difference, len(vectors), out)


@_compiled
def _mean_of_two(first: Any, last: Any, out: Any) -> None:
    two = first.dtype.type(2)
    for i in range(len(first)):
        out[i] = first[i] + (last[i] - first[i]) / two


@_compiled
def _begin(first: Any, one: Any, difference: Any) -> None:
    for i in range(len(first)):
        difference[i] = one[i] - first[i]


@_compiled
def _go_on(first: Any, one: Any, difference: Any) -> None:
    for i in range(len(first)):
        difference[i] += one[i] - first[i]


@_compiled
def _end(first: Any, last: Any, difference: Any, count: int, out: Any) -> None:
    n = first.dtype.type(count)
    for i in range(len(first)):
        out[i] = first[i] + (difference[i] + (last[i] - first[i])) / n
