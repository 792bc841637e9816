"""What a run whose nodes take means does about nodes that die and nodes that come: one value, for all backends.

The k-th mean of a channel is taken by the nodes that are in the *view* when it closes; all of them get the same result,
or none does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from flockstep import check, units

SENDS_TO_NEIGHBOURS = (
    "this strategy, or its average, sends to neighbours, and cannot go on without one of them: not in an elastic run\n"
    "  take one whose nodes take means, such as LocalSGD(period=8) or CoCoD(period=8), with average=Exact() or, in few "
    "bits, Coded(codec=Cast()); or a one-sided one, such as Swarm()"
)
"""Why a node that is not one-sided may not ``send`` in an elastic run, and what to use instead."""


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """How a run goes on when nodes die, and when it waits.

    A node that is silent for longer than ``patience`` is left out: the round that it is missing in is repeated by the
    others. A node that comes back, or comes late, takes over model, optimizer and what the strategy keeps from one that
    is there, and is in the next round. As long as fewer than ``min_nodes`` are left, nodes wait: of a run that a
    broken network has cut in two, at most one part goes on.

    Args:
        min_nodes: Least nodes that may go on together. None: more than half of those that were there last, which only
            one part of a run can be. With a smaller number, a run that is cut in two may go on as two.
        patience: How long a node may be silent before the others go on without it: seconds, or a text such as "5 s".
            None: a second on virtual nodes, ten on real ones, whose threads may not get to say a word for a while. A
            process that has ended is noticed at once, whatever this is.

    Example:
        fs.simulate(fs.LocalSGD(period=8), workload, nodes=8, faults=[fs.faults.Crash(node=3, at="10 s")], elastic=True)
    """

    min_nodes: int | None = None
    patience: str | float | None = None

    def __post_init__(self) -> None:
        if self.min_nodes is not None:
            check.whole(self, "min_nodes", self.min_nodes)
        if self.patience is not None and units.seconds(self.patience, "Elastic.patience") <= 0:
            raise ValueError(f"Elastic.patience must be above 0 s, got {self.patience!r}")

    @property
    def virtual_patience(self) -> float:
        """How long a virtual node may be silent, in seconds."""
        return 1.0 if self.patience is None else units.seconds(self.patience)

    @property
    def real_patience(self) -> float:
        """How long a real node may be silent, in seconds."""
        return 10.0 if self.patience is None else units.seconds(self.patience)

    def least(self, view_size: int) -> int:
        """How many of a view of so many nodes may go on without the others."""
        return view_size // 2 + 1 if self.min_nodes is None else self.min_nodes


ELASTIC, MIN_NODES, PATIENCE = "FLOCKSTEP_ELASTIC", "FLOCKSTEP_MIN_NODES", "FLOCKSTEP_PATIENCE"
"""What a launcher says to the nodes that it starts; the first is 1, or nothing."""


def from_environment() -> Elastic | None:
    """What the launcher of this process said."""
    if os.environ.get(ELASTIC, "") != "1":
        return None
    least, patience = os.environ.get(MIN_NODES), os.environ.get(PATIENCE)
    given = {"patience": patience} if patience else {}
    return Elastic(min_nodes=int(least) if least else None, **given)


def elastic_of(given: bool | Elastic, whose: str) -> Elastic | None:
    """What ``elastic=`` was given as; None where a run is not elastic."""
    if isinstance(given, Elastic):
        return given
    if not isinstance(given, bool):
        raise TypeError(f"{whose}.elastic must be True, False or an Elastic, got {given!r}")
    return Elastic() if given else None
