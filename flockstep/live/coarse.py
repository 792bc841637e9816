"""Many short spans as few: what nobody can see at the scale of a picture need not be kept."""

from __future__ import annotations

from collections.abc import Iterable

from flockstep.timeline import Span


def coarsen(spans: Iterable[Span], grain: float) -> list[Span]:
    """Spans of one node, in order, put together within every ``grain`` seconds.

    The seconds of each kind stay what they were; only where they lie may be off, by less than a grain.
    """
    made: list[Span] = []
    group: list[Span] = []
    for span in spans:
        if group and span.end - group[0].begin > grain:
            made += _one_of_each_kind(group)
            group = []
        group.append(span)
    return made + _one_of_each_kind(group)


def _one_of_each_kind(group: list[Span]) -> list[Span]:
    if len(group) < 2:
        return group
    seconds: dict[str, float] = {}
    for span in group:
        seconds[span.kind] = seconds.get(span.kind, 0.0) + span.end - span.begin
    made, begin = [], group[0].begin
    for kind, length in seconds.items():
        made.append(Span(group[0].rank, kind, begin, begin + length))
        begin += length
    return made


def at_most(spans: list[Span], count: int, grain: float) -> list[Span]:
    """The same with a grain that doubles until there are few enough."""
    while len(spans) > count:
        spans, grain = coarsen(spans, grain), 2 * grain
    return spans
