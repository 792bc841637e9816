"""Where a run's time and bytes went: which node did what when, and who sent how much to whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """Told by nodes as they go. What a node's main task did; background work is not time that passes for it.

    Time stands still while losses are measured, as it does in a trace's rows.
    """

    spans: list[Span] = field(default_factory=list)
    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes by sender and receiver. A ring's are those to the next node in it."""
    began: float = 0.0
    """What the clock on the wall said at second 0, in seconds since 1970; 0 where time is virtual."""
    beside: Timeline | None = field(default=None, repr=False, compare=False)
    """Another that is to be told the same."""

    def __post_init__(self) -> None:
        self._last: dict[int, int] = {span.rank: index for index, span in enumerate(self.spans)}

    def spend(self, rank: int, kind: str, begin: float, end: float) -> None:
        """So long a node did this; what follows on the same without a gap is one span."""
        if end <= begin:
            return
        if self.beside is not None:
            self.beside.spend(rank, kind, begin, end)
        last = self._last.get(rank)
        if last is not None and self.spans[last].kind == kind and self.spans[last].end == begin:
            self.spans[last] = self.spans[last]._replace(end=end)
            return
        self._last[rank] = len(self.spans)
        self.spans.append(Span(rank, kind, begin, end))

    def send(self, rank: int, peer: int, nbytes: int) -> None:
        """So many bytes left one node for another."""
        if self.beside is not None:
            self.beside.send(rank, peer, nbytes)
        self.sent[rank, peer] = self.sent.get((rank, peer), 0) + nbytes

    def merge(self, other: Timeline) -> None:
        """Take in what other nodes told elsewhere, on the clock of this one."""
        later = other.began - self.began
        for span in other.spans:
            self.spend(span.rank, span.kind, span.begin + later, span.end + later)
        for (rank, peer), nbytes in other.sent.items():
            self.send(rank, peer, nbytes)

    @classmethod
    def together(cls, timelines: Iterable[Timeline | None]) -> Timeline | None:
        """One of all nodes, from those each kept by itself; second 0 is when the first of them began."""
        kept = [timeline for timeline in timelines if timeline is not None]
        if not kept:
            return None
        whole = cls(began=min(timeline.began for timeline in kept))
        for timeline in kept:
            whole.merge(timeline)
        return whole

    def of(self, rank: int) -> Iterator[Span]:
        """One node's spans, in order."""
        return (span for span in self.spans if span.rank == rank)

    def seconds(self, rank: int) -> dict[str, float]:
        """How long a node did each kind of thing."""
        spent = dict.fromkeys(KINDS, 0.0)
        for span in self.of(rank):
            spent[span.kind] += span.end - span.begin
        return spent

    def matrix(self, size: int) -> list[list[int]]:
        """Bytes from each node (row) to each (column)."""
        return [[self.sent.get((rank, peer), 0) for peer in range(size)] for rank in range(size)]

    def to_plain(self) -> dict[str, Any]:
        """As lists and numbers, for JSON."""
        sent = [[*pair, n] for pair, n in self.sent.items()]
        return {"spans": [list(span) for span in self.spans], "sent": sent, "began": self.began}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Timeline:
        """Back from ``to_plain``."""
        spans = [Span(*span) for span in plain["spans"]]
        return cls(spans, {(rank, peer): n for rank, peer, n in plain["sent"]}, plain.get("began", 0.0))
