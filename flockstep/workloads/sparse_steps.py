"""Steps of logistic regression on sparse as compiled loops that leave the interpreter lock.

Several cores may run ``descend`` on one ``x`` at once, with no lock. What makes that slow is not arithmetic: a number
that another core wrote last has to be fetched from its cache, which takes as long as dozens of operations. A loop here
therefore copies what its next few steps touch, takes them on the copy, and then writes each number once. Indices are
unsigned because numba would first see whether a signed one is negative.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=False)
# A call hands over every array in half a dozen parts, which takes a good part of a step.
_in_place = numba.njit(nogil=True, inline="always", error_model="numpy", fastmath=False)


@compiled
def gradient(x: Any, starts: Any, columns: Any, values: Any, pull: Any, drawn: Any, out: Any) -> None:
    """Add to ``out`` the gradient at ``x``, averaged over the rows drawn."""
    one, share = x.dtype.type(1), x.dtype.type(1 / drawn.size)
    for d in range(drawn.size):
        row = drawn[d]
        at, signed = columns[starts[row] : starts[row + 1]], values[starts[row] : starts[row + 1]]
        margin = x.dtype.type(0)
        for k in range(at.size):
            margin += signed[k] * x[at[k]]
        wrong = one / (one + np.exp(margin))
        for k in range(at.size):
            out[at[k]] += share * (pull[at[k]] * x[at[k]] - wrong * signed[k])


@compiled
def descend(
    x: Any,
    starts: Any,
    columns: Any,
    values: Any,
    pull: Any,
    drawn: Any,
    rate: Any,
    publish: Any,
    mine: Any,
    before: Any,
    held: Any,
    touched: Any,
    changes: Any,
) -> None:
    """A step for each line of ``drawn``, writing to ``x`` after every ``publish`` of them.

    ``mine`` and ``before`` are the copy, as it is and as it was fetched; ``held`` says of each coordinate whether it
    is in there, and ``touched`` lists those that are.
    """
    share = x.dtype.type(rate / drawn.shape[1])
    for first in range(0, len(drawn), publish):
        ahead = drawn[first : first + publish]
        count = _fetch(x, starts, columns, ahead, mine, before, held, touched)
        for step in range(len(ahead)):
            _step(mine, starts, columns, values, pull, ahead[step], share, changes)
        for t in range(count):
            i = touched[t]
            now = x[i]
            # Where nobody else wrote, the very bits: mine - before + now would round.
            x[i] = mine[i] if now == before[i] else now + (mine[i] - before[i])
            held[i] = False


@_in_place
def _fetch(x: Any, starts: Any, columns: Any, ahead: Any, mine: Any, before: Any, held: Any, touched: Any) -> Any:
    count = 0
    for step in range(len(ahead)):
        for d in range(ahead.shape[1]):
            row = ahead[step, d]
            at = columns[starts[row] : starts[row + 1]]
            for k in range(at.size):
                i = at[k]
                if not held[i]:
                    held[i] = True
                    touched[count] = i
                    count += 1
                    mine[i] = before[i] = x[i]
    return count


@_in_place
def _step(x: Any, starts: Any, columns: Any, values: Any, pull: Any, drawn: Any, share: Any, changes: Any) -> None:
    one = x.dtype.type(1)
    # All changes first: the rows of a batch share coordinates, and each row must see x as it was.
    filled = 0
    for d in range(drawn.size):
        row = drawn[d]
        at, signed = columns[starts[row] : starts[row + 1]], values[starts[row] : starts[row + 1]]
        change = changes[filled : filled + at.size]
        margin = x.dtype.type(0)
        for k in range(at.size):
            margin += signed[k] * x[at[k]]
        wrong = one / (one + np.exp(margin))
        for k in range(at.size):
            change[k] = share * (wrong * signed[k] - pull[at[k]] * x[at[k]])
        filled += at.size
    filled = 0
    for d in range(drawn.size):
        row = drawn[d]
        at = columns[starts[row] : starts[row + 1]]
        change = changes[filled : filled + at.size]
        for k in range(at.size):
            x[at[k]] += change[k]
        filled += at.size
