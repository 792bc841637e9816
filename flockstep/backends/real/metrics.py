"""How a node does, in the text that Prometheus reads.

Written by hand: a node should show this wherever it runs, and the format is three kinds of lines. The client library
would be one more thing to install on every node, and brings a registry of counters of its own beside the report.
"""

from __future__ import annotations

from collections.abc import Iterator

from flockstep.timeline import KINDS
from flockstep.trace import NodeReport

_Metric = tuple[str, dict[str, float]]
"""What a number is, in words; and its values by label."""

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def text(report: NodeReport, now: float, living: int, loss: float | None, view: int | None = None) -> str:
    """A node's report at this moment: its clock, how many other nodes live, the last loss if there was one, and in an
    elastic run how many nodes take part.
    """
    is_elastic = view is not None
    counters: dict[str, _Metric] = {
        "steps": ("Steps taken.", {"": report.steps}),
        "skipped_steps": ("Steps that a gradient which is not finite made void.", {"": report.skipped}),
        "gradients": ("Gradients computed.", {"": report.gradients}),
        "sent_bytes": ("Bytes sent to other nodes.", {"": report.bytes_sent}),
        "received_bytes": ("Bytes received from other nodes.", {"": report.bytes_received}),
        "spent_seconds": ("Seconds by what they were spent on.", {_by("kind", k): getattr(report, k) for k in KINDS}),
        # A copy: the node goes on counting.
        "events": ("What else the strategy counts.", {_by("name", k): n for k, n in dict(report.counts).items()}),
        "view_changes": ("Changes of who takes part.", {"": len(report.views)} if is_elastic else {}),
    }
    gauges: dict[str, _Metric] = {
        "run_seconds": ("Seconds since the node began; measuring losses does not count.", {"": now}),
        "living_peers": ("Other nodes that are alive, as far as this one knows.", {"": living}),
        "loss": ("The last loss recorded.", {} if loss is None else {"": loss}),
        "view_nodes": ("Nodes that take part, in the last view this node was in.", {} if view is None else {"": view}),
    }
    lines = [line for name, metric in counters.items() for line in _metric(f"{name}_total", "counter", report, metric)]
    lines += [line for name, metric in gauges.items() for line in _metric(name, "gauge", report, metric)]
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, report: NodeReport, metric: _Metric) -> Iterator[str]:
    about, values = metric
    if not values:
        return
    yield f"# HELP flockstep_{name} {about}"
    yield f"# TYPE flockstep_{name} {kind}"
    for label, value in values.items():
        yield f'flockstep_{name}{{rank="{report.rank}"{label}}} {float(value)!r}'


def _by(label: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f',{label}="{escaped}"'
