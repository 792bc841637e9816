"""A timeline as a trace that Perfetto and Chrome's own viewer open: every node a process, what it does slices in it.

The format is Chrome's JSON of trace events, times in microseconds. Losses, spread and bytes are counters of the run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flockstep.timeline import Timeline
from flockstep.trace import Trace

Event = dict[str, Any]


def write(trace: Trace, path: Path) -> None:
    """Write a trace whose timeline was kept."""
    timeline = trace.kept_timeline()
    events = [*_nodes(trace), *_slices(timeline), *_counters(trace)]
    about = {
        "strategy": trace.strategy,
        "bytes by sender and receiver": [[*pair, n] for pair, n in timeline.sent.items()],
    }
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}, allow_nan=False)
    path.write_text(text)


def _nodes(trace: Trace) -> Iterator[Event]:
    names = {node.rank: f"node {node.rank}" for node in trace.nodes} | {_run(trace): "the run"}
    for rank, name in names.items():
        yield _meta(rank, "process_name", name=name)
        yield _meta(rank, "process_sort_index", sort_index=rank)
        yield _meta(rank, "thread_name", name=name)


def _slices(timeline: Timeline) -> Iterator[Event]:
    for rank, kind, begin, end in timeline.spans:
        # Both ends rounded, not the length: neighbours stay neighbours.
        first, last = _nanoseconds(begin), _nanoseconds(end)
        yield _event("X", rank, kind, first) | {"tid": rank + 1, "cat": "flockstep", "dur": (last - first) / 1000}


def _counters(trace: Trace) -> Iterator[Event]:
    for row in trace.rows:
        for name, value in (("loss", row.loss), ("spread", row.spread), ("bytes sent per node", row.bytes)):
            if math.isfinite(value):
                yield _event("C", _run(trace), name, _nanoseconds(row.seconds)) | {"args": {"value": value}}


def _run(trace: Trace) -> int:
    return 1 + max(node.rank for node in trace.nodes)


def _meta(rank: int, what: str, **values: Any) -> Event:
    return {"ph": "M", "pid": rank + 1, "tid": rank + 1, "name": what, "args": values}


def _event(kind: str, rank: int, name: str, nanoseconds: int) -> Event:
    # From 1: process 0 is the idle one.
    return {"ph": kind, "pid": rank + 1, "name": name, "ts": nanoseconds / 1000}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
