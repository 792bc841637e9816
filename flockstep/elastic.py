"""What a run whose nodes take means does about nodes that die and nodes that come: one value, for all backends.

The k-th mean of a channel is taken by the nodes that are in the *view* when it closes; all of them get the same result,
or none does.
"""

from __future__ import annotations

from dataclasses import dataclass

from flockstep import check, units


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

    Example:
        fs.simulate(fs.LocalSGD(period=8), workload, nodes=8, faults=[fs.faults.Crash(node=3, at="10 s")], elastic=True)
    """

    min_nodes: int | None = None
    patience: str | float = "1 s"

    def __post_init__(self) -> None:
        if self.min_nodes is not None:
            check.whole(self, "min_nodes", self.min_nodes)
        if units.seconds(self.patience, "Elastic.patience") <= 0:
            raise ValueError(f"Elastic.patience must be above 0 s, got {self.patience!r}")

    @property
    def patience_seconds(self) -> float:
        """``patience`` as a number."""
        return units.seconds(self.patience)

    def least(self, view_size: int) -> int:
        """How many of a view of so many nodes may go on without the others."""
        return view_size // 2 + 1 if self.min_nodes is None else self.min_nodes


def elastic_of(given: bool | Elastic, whose: str) -> Elastic | None:
    """What ``elastic=`` was given as; None where a run is not elastic."""
    if isinstance(given, Elastic):
        return given
    if not isinstance(given, bool):
        raise TypeError(f"{whose}.elastic must be True, False or an Elastic, got {given!r}")
    return Elastic() if given else None
