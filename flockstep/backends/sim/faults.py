"""Declared misfortune: what happens to virtual nodes, and when."""

from __future__ import annotations

from dataclasses import dataclass

from flockstep import check, units


@dataclass(frozen=True, kw_only=True)
class Crash:
    """A node dies at a moment and stays dead."""

    node: int
    at: str | float

    def __post_init__(self) -> None:
        check.whole(self, "node", self.node, at_least=0)
        units.seconds(self.at, "Crash.at")


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """A node computes ``factor`` times slower from ``start`` for ``duration``."""

    node: int
    start: str | float
    duration: str | float
    factor: float

    def __post_init__(self) -> None:
        check.whole(self, "node", self.node, at_least=0)
        units.seconds(self.start, "Slowdown.start")
        units.seconds(self.duration, "Slowdown.duration")
        check.positive(self, "factor", self.factor)

    def factor_at(self, time: float) -> float:
        """How much slower the node is at a moment."""
        start = units.seconds(self.start)
        return self.factor if start <= time < start + units.seconds(self.duration) else 1.0


Fault = Crash | Slowdown
