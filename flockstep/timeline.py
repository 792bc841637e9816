"""Where a run's time and bytes went: which node did what when, and who sent how much to whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

KINDS = ("computing", "waiting", "talking")


class Span(NamedTuple):
    """A node did one kind of thing from one moment to another, in seconds of the run."""

    rank: int
    kind: str
    begin: float
    end: float


@dataclass
class Timeline:
    """Told by nodes as they go. What a node's main task did; background work is not time that passes for it."""

    spans: list[Span] = field(default_factory=list)
    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes by sender and receiver. A ring's are those to the next node in it."""

    def __post_init__(self) -> None:
        self._last: dict[int, int] = {}

    def spend(self, rank: int, kind: str, begin: float, end: float) -> None:
        """So long a node did this; what follows on the same without a gap is one span."""
        if end <= begin:
            return
        last = self._last.get(rank)
        if last is not None and self.spans[last].kind == kind and self.spans[last].end == begin:
            self.spans[last] = self.spans[last]._replace(end=end)
            return
        self._last[rank] = len(self.spans)
        self.spans.append(Span(rank, kind, begin, end))

    def send(self, rank: int, peer: int, nbytes: int) -> None:
        """So many bytes left one node for another."""
        self.sent[rank, peer] = self.sent.get((rank, peer), 0) + nbytes

    def merge(self, other: Timeline) -> None:
        """Take in what other nodes told elsewhere."""
        for span in other.spans:
            self.spend(*span)
        for (rank, peer), nbytes in other.sent.items():
            self.send(rank, peer, nbytes)

    def of(self, rank: int) -> Iterator[Span]:
        """One node's spans, in order."""
        return (span for span in self.spans if span.rank == rank)

    def matrix(self, size: int) -> list[list[int]]:
        """Bytes from each node (row) to each (column)."""
        return [[self.sent.get((rank, peer), 0) for peer in range(size)] for rank in range(size)]

    def to_plain(self) -> dict[str, Any]:
        """As lists and numbers, for JSON."""
        return {"spans": [list(span) for span in self.spans], "sent": [[*pair, n] for pair, n in self.sent.items()]}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Timeline:
        """Back from ``to_plain``."""
        spans = [Span(*span) for span in plain["spans"]]
        return cls(spans, {(rank, peer): n for rank, peer, n in plain["sent"]})
