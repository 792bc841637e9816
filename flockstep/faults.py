"""Declared misfortune: what happens to virtual nodes, and when.

A fault comes first of all that happens at its moment, and one that lasts is over at its end: from ``start`` until just
before ``start + duration``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flockstep import check, units

__all__ = ["Crash", "Fault", "MessageLoss", "Partition", "Pause", "Slowdown"]


def _span(start: str | float, duration: str | float) -> tuple[float, float]:
    begin = units.seconds(start)
    return begin, begin + units.seconds(duration)


@dataclass(frozen=True, kw_only=True)
class Crash:
    """A node dies at a moment. It stays dead, or begins its program anew after a while.

    A node that comes back is what a process started again would be: the model, the optimizer, the step count and the
    random streams of the start, and ``node.incarnation`` one higher. What was on its way to or from it when it died is
    lost. Only strategies without collectives can go on with it, since those need every node. The run waits for nodes
    that are still to come back; a crash of a node that is down does nothing.

    Args:
        node: Rank of the node.
        at: When it dies, in virtual time: seconds, or a text such as "2 min".
        back_after: How much later it begins anew: seconds, or a text. None: never.

    Example:
        cluster = dict(nodes=8, steps=20, compute=fs.Compute(step="1 s"))
        fs.simulate(fs.Swarm(), workload, faults=[fs.faults.Crash(node=3, at="10 s", back_after="5 s")], **cluster)
    """

    node: int
    at: str | float
    back_after: str | float | None = None

    def __post_init__(self) -> None:
        check.whole(self, "node", self.node, at_least=0)
        units.seconds(self.at, "Crash.at")
        if self.back_after is not None:
            units.seconds(self.back_after, "Crash.back_after")


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """A node computes slower for a while.

    Args:
        node: Rank of the node.
        start: When it begins, in virtual time: seconds, or a text such as "2 min".
        duration: How long it lasts: seconds, or a text.
        factor: How many times longer a gradient takes meanwhile.

    Example:
        cluster = dict(nodes=8, steps=20, compute=fs.Compute(step="1 s"))
        fs.simulate(fs.Swarm(), workload, faults=[fs.faults.Slowdown(node=3, start=1, duration=5, factor=4)], **cluster)
    """

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
        start, end = _span(self.start, self.duration)
        return self.factor if start <= time < end else 1.0


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A node stands still for a while, as after SIGSTOP, and then goes on where it was.

    It computes nothing, answers nothing, and messages to and from it do not move. Clocks go on: a node that asks it may
    give it up, and a question of its own that ran out of time meanwhile is lost when it wakes. It stays a member. Its
    report counts the time under what it was doing.

    Args:
        node: Rank of the node.
        start: When it begins, in virtual time: seconds, or a text such as "2 min".
        duration: How long it lasts: seconds, or a text.

    Example:
        cluster = dict(nodes=8, steps=20, compute=fs.Compute(step="1 s"))
        fs.simulate(fs.Swarm(), workload, faults=[fs.faults.Pause(node=3, start="1 s", duration="5 s")], **cluster)
    """

    node: int
    start: str | float
    duration: str | float

    def __post_init__(self) -> None:
        check.whole(self, "node", self.node, at_least=0)
        units.seconds(self.start, "Pause.start")
        units.seconds(self.duration, "Pause.duration")

    @property
    def span(self) -> tuple[float, float]:
        """From when until when."""
        return _span(self.start, self.duration)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Messages between different groups of nodes do not move for a while.

    They are not lost: like TCP over a cable that was pulled, they go on afterwards unless a node has given up.
    Collectives wait.

    Args:
        groups: Groups of ranks; nodes that are named in none are one further group.
        start: When it begins, in virtual time: seconds, or a text such as "2 min".
        duration: How long it lasts: seconds, or a text.

    Example:
        cut = fs.faults.Partition(groups=[(0, 1, 2, 3), (4, 5, 6, 7)], start="1 s", duration="5 s")
        fs.simulate(fs.Swarm(), workload, nodes=8, steps=20, compute=fs.Compute(step="1 s"), faults=[cut])
    """

    groups: Sequence[Sequence[int]]
    start: str | float
    duration: str | float

    def __post_init__(self) -> None:
        if not self.groups or not all(isinstance(group, Sequence) and group for group in self.groups):
            raise ValueError(f"Partition.groups must be groups of nodes such as ((0, 1), (2, 3)), got {self.groups!r}")
        named = [check.whole(self, "groups", rank, at_least=0) for group in self.groups for rank in group]
        for rank in named:
            if named.count(rank) > 1:
                raise ValueError(f"Partition.groups names node {rank} twice")
        units.seconds(self.start, "Partition.start")
        units.seconds(self.duration, "Partition.duration")

    @property
    def span(self) -> tuple[float, float]:
        """From when until when."""
        return _span(self.start, self.duration)

    def sides(self, size: int) -> list[int]:
        """For each node the number of its group."""
        side = {rank: number for number, group in enumerate(self.groups) for rank in group}
        return [side.get(rank, len(self.groups)) for rank in range(size)]


@dataclass(frozen=True, kw_only=True)
class MessageLoss:
    """Each ``ask`` comes to nothing with some probability.

    The node that asks finds out at its deadline. Half of those lost are lost before the peer's handler ran, half after
    it: what a peer that fails in the middle of an exchange looks like from outside. ``send``, ``receive`` and
    collectives stand for streams that send again what is lost on the way, so nothing happens to them.

    Args:
        share: Probability that an ``ask`` is lost, from 0 to 1.
        start: When it begins, in virtual time: seconds, or a text such as "2 min".
        duration: How long it lasts: seconds, or a text. None: to the end.

    Example:
        cluster = dict(nodes=8, steps=20, compute=fs.Compute(step="1 s"))
        fs.simulate(fs.Swarm(), workload, faults=[fs.faults.MessageLoss(share=0.05)], **cluster)
    """

    share: float
    start: str | float = 0.0
    duration: str | float | None = None

    def __post_init__(self) -> None:
        check.fraction(self, "share", self.share)
        units.seconds(self.start, "MessageLoss.start")
        if self.duration is not None:
            units.seconds(self.duration, "MessageLoss.duration")

    def share_at(self, time: float) -> float:
        """The probability at a moment."""
        start, end = _span(self.start, self.duration or 0.0)
        return self.share if start <= time and (self.duration is None or time < end) else 0.0


Fault = Crash | MessageLoss | Partition | Pause | Slowdown


def named(fault: Fault) -> list[int]:
    """The nodes a fault speaks of, which must exist."""
    if isinstance(fault, Partition):
        return [rank for group in fault.groups for rank in group]
    return [] if isinstance(fault, MessageLoss) else [fault.node]
