"""A timeline in few letters: for each node its kinds as a string, its times as whole ticks from one to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flockstep.timeline import KINDS, Span, Timeline

LETTERS = {kind: kind[0] for kind in KINDS}

# Of a whole run, a ten-millionth: finer than any screen, and short to write.
_DIGITS = 7


def pack(timeline: Timeline, nodes: int) -> dict[str, Any]:
    """Every span of every node, for the page's program to unpack."""
    seconds = max((span.end for span in timeline.spans), default=0.0)
    power = math.floor(math.log10(seconds)) - _DIGITS if seconds > 0 else 0
    by_rank: list[list[Span]] = [[] for _ in range(nodes)]
    for span in timeline.spans:
        by_rank[span.rank].append(span)
    lanes = [_lane(sorted(spans, key=lambda span: span.begin), power) for spans in by_rank]
    return {"tick": float(f"1e{power}"), "seconds": float(f"{seconds:.9g}"), "lanes": lanes}


def _lane(spans: Sequence[Span], power: int) -> dict[str, Any]:
    kinds, times, now = [], [], 0
    for span in spans:
        # Rounded as moments, not as lengths, so that roundings do not add up.
        begin, end = (max(now, round(moment * 10.0**-power)) for moment in (span.begin, span.end))
        if end > begin:
            kinds.append(LETTERS[span.kind])
            times += [begin - now, end - begin]
            now = end
    return {"kinds": "".join(kinds), "times": times}


def pairs(timeline: Timeline, nodes: int) -> dict[str, Any]:
    """Bytes by sender and receiver, those that sent any."""
    return {"nodes": nodes, "sent": [[*pair, count] for pair, count in sorted(timeline.sent.items()) if count]}
