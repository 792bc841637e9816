"""What declared faults do and when: nodes stand still, links are cut, messages are lost.

Spans are known beforehand because every fault is declared; losses are drawn from a stream of their own, so that no
other number changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from flockstep.faults import Fault, MessageLoss, Partition, Pause

Spans = Sequence[tuple[float, float]]
"""From when until just before when, sorted; they may overlap."""


def after(spans: Spans, now: float, seconds: float = 0.0) -> float:
    """When so many seconds outside of the spans will have passed; the moment itself is outside of them, too."""
    for start, end in spans:
        if end > now:
            if start > now:
                if now + seconds < start:
                    break
                seconds = max(0.0, seconds - (start - now))
            now = end
    return now + seconds


class Outages:
    """What the declared pauses and partitions mean for nodes and for the ways between them."""

    def __init__(self, faults: Iterable[Fault], size: int) -> None:
        self.pauses: list[Spans] = [()] * size
        self.partitions: list[tuple[tuple[float, float], list[int]]] = []
        """From when until when, and the number of each node's side."""
        for fault in faults:
            # One without length would be nothing but an event.
            if isinstance(fault, Pause) and fault.span[1] > fault.span[0]:
                self.pauses[fault.node] = sorted([*self.pauses[fault.node], fault.span])
            elif isinstance(fault, Partition) and fault.span[1] > fault.span[0]:
                self.partitions.append((fault.span, fault.sides(size)))
        cut = [span for span, sides in self.partitions if len(set(sides)) > 1]
        self.anywhere: Spans = sorted([*cut, *(span for spans in self.pauses for span in spans)])
        """When a collective stands still: it needs everybody and every way."""

    def between(self, a: int, b: int) -> Spans:
        """When nothing moves from one node to another."""
        if not self.anywhere:
            return ()
        cut = [span for span, sides in self.partitions if sides[a] != sides[b]]
        return sorted([*self.pauses[a], *self.pauses[b], *cut])

    def among(self, ranks: Sequence[int]) -> Spans:
        """When something that needs all of these nodes stands still."""
        if not self.anywhere:
            return ()
        cut = [span for span, sides in self.partitions if len({sides[rank] for rank in ranks}) > 1]
        return sorted([*cut, *(span for rank in ranks for span in self.pauses[rank])])


class MessageLosses:
    """The declared losses of a run."""

    def __init__(self, faults: Iterable[Fault], rng: np.random.Generator) -> None:
        self._declared = [fault for fault in faults if isinstance(fault, MessageLoss)]
        self._rng = rng

    def draw(self, now: float) -> str:
        """What is lost of an exchange that begins now: its "question", its "reply" or, mostly, nothing: ""."""
        for loss in self._declared:
            share = loss.share_at(now)
            if share and (drawn := self._rng.random()) < share:
                return "question" if drawn < share / 2 else "reply"
        return ""
