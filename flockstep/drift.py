"""Do the nodes drift apart? The loss of their average cannot tell: it may fall while every model by itself gets worse.

Models that train on different data do lie apart, first more and more, then as far as averaging lets them. Here is told
of those that go on and on: in each quarter of a run the spread is 2.5 times what it was in the quarter before, or more.
Nodes that never talk walk apart more slowly than that.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from itertools import pairwise

from flockstep.trace import Row, Trace

_TIMES = 2.5
_FEWEST, _LEAST = 8, 1e-6
"""Rows with a spread, and what of a spread, below which nothing is said: rounding is no drift."""


def drift(rows: Sequence[Row]) -> str | None:
    """What is to be said of nodes whose spread grows while the loss of their average falls; None if that is not so."""
    known = [row for row in rows if math.isfinite(row.loss) and math.isfinite(row.spread)]
    if len(known) < _FEWEST:
        return None
    cut = len(known) // 4
    quarters = [known[len(known) - (4 - k) * cut : len(known) - (3 - k) * cut] for k in range(4)]
    spreads = [statistics.median(row.spread for row in quarter) for quarter in quarters]
    losses = [statistics.median(row.loss for row in quarter) for quarter in quarters]
    grows = spreads[1] > _LEAST and all(after > _TIMES * before for before, after in pairwise(spreads))
    if not grows or losses[3] > losses[1]:
        return None
    first, last = quarters[1][0], known[-1]
    return (
        f"the nodes drift apart: the mean squared distance of their models from the average was {first.spread:.3g} at "
        f"step {first.step} and is {last.spread:.3g} at step {last.step}, while the loss of the average fell; "
        "it may be good where no node's own model is"
    )


def warn_of_drift(traces: Sequence[Trace]) -> None:
    """One warning for all of them, to whoever called the caller."""
    said = [trace.drift for trace in traces if trace.drift is not None]
    if said:
        warnings.warn(said[0], stacklevel=3)
