"""The losses that a loop logs, shown to whoever started it: the first, one now and then, and the last."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flockstep import units
from flockstep.backends.loop.node import JoinedNode
from flockstep.trace import Row

SHOWN = "FLOCKSTEP_LOSSES"
"""Set to 1 by ``flockstep run``, unless the user has set it to 0."""

# Between two lines lie so many seconds, and longer as the run goes on: a day of training is no flood of them.
_SOONEST, _LATEST, _SHARE = 2.0, 60.0, 0.1


class Losses:
    """Those of one node, on standard error: standard output belongs to the script."""

    def __init__(self) -> None:
        self._due = 0.0
        self._untold: Row | None = None

    def row(self, row: Row) -> None:
        """A loss that the loop logged."""
        self._untold = row
        if row.seconds >= self._due:
            self.tell()

    def tell(self) -> None:
        """Show the last one, unless it was shown."""
        if (row := self._untold) is None:
            return
        self._untold = None
        self._due = row.seconds + min(max(_SOONEST, _SHARE * row.seconds), _LATEST)
        line = f"node 0: step {row.step}, loss {row.loss:.4g}, {units.show_seconds(row.seconds)}"
        print(line, file=sys.stderr, flush=True)


@contextmanager
def showing(node: JoinedNode) -> Iterator[None]:
    """Inside, what node 0 of a real run logs is shown where that was asked for."""
    if os.environ.get(SHOWN) != "1" or node.rank or node.column or node.virtual:
        yield
        return
    losses = Losses()
    node.onlookers = (*node.onlookers, losses.row)
    try:
        yield
    finally:
        losses.tell()
