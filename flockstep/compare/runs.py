"""One run of a comparison: one strategy, one seed. Failures that belong to the answer are part of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flockstep as fs
from flockstep.compare import user_code
from flockstep.compare.cluster import Cluster
from flockstep.compare.folder import RunWriter
from flockstep.compare.plan import Comparison, Entry
from flockstep.strategy import is_one_sided
from flockstep.trace import NodeReport, Row, Trace

OnRow = Callable[[Row], None]
Start = Callable[..., Trace]

_TELLING = (fs.LostPeer, fs.Deadlock, fs.Diverged, fs.CodecRange)
"""What a strategy may end with on such a cluster; anything else is a mistake, and ends the comparison."""
NO_LOSSES = "no loss was recorded: call node.log(loss) in your training function"


def perform(comparison: Comparison, index: int, seed: int, path: Path, on_row: OnRow, start: Start) -> None:
    """Run it with ``start`` (``fs.simulate`` or what does the same for real), and write its file as it goes."""
    entry = comparison.entries[index]
    with RunWriter(path, optimizer=entry.steps_with()) as writer:
        rows: list[Row] = []

        def record(row: Row) -> None:
            rows.append(row)
            writer.row(row)
            on_row(row)

        trace, failure = _tried(comparison, entry, seed, rows, record, start)
        # A loop of the user's own tells its rows at the end.
        for row in trace.rows[len(rows) :]:
            record(row)
        trace.strategy = entry.describe()
        writer.done(trace, failure)


def _tried(
    comparison: Comparison, entry: Entry, seed: int, rows: list[Row], on_row: OnRow, start: Start
) -> tuple[Trace, str | None]:
    try:
        # The picture of one run says it all, and is the largest part of a report.
        trace = start(timeline=seed == comparison.seeds[0], **arguments(comparison, entry, seed, on_row))
    except _TELLING as error:
        return error.trace or _as_far_as(rows, comparison.cluster.nodes), str(error)
    return trace, None if trace.rows else NO_LOSSES


def arguments(comparison: Comparison, entry: Entry, seed: int, on_row: OnRow) -> dict[str, Any]:
    """What ``fs.simulate`` or ``fs.launch`` is called with."""
    thing, strategy, nodes = comparison.thing(), entry.strategy(), comparison.cluster.nodes
    common = {"nodes": nodes, "seed": seed}
    if isinstance(comparison.cluster, Cluster):
        network, compute, faults = (
            comparison.cluster.network(),
            comparison.cluster.compute(),
            comparison.cluster.faults(),
        )
        common |= {"network": network, "compute": compute, "faults": faults}  # type: ignore[dict-item]
    if isinstance(thing, user_code.Loop):
        return {"program": thing.program(strategy, seed), **common}
    if entry.optimizer is None or entry.lr is None:
        raise ValueError("a strategy on a workload needs an optimizer and a learning rate")
    return {
        "program": strategy,
        "workload": thing,
        # Where nobody waits for anybody, whoever is fast takes more of the same work.
        "steps": fs.Budget(steps=nodes * comparison.steps) if is_one_sided(strategy) else comparison.steps,
        "optimizer": entry.optimizer.factory(entry.lr),
        "record_every": comparison.record_every,
        "on_row": on_row,
        **common,
    }


def _as_far_as(rows: list[Row], nodes: int) -> Trace:
    """The trace of a real run that failed: what was heard of it."""
    last = rows[-1] if rows else Row(0.0, 0, 0.0, 0.0, 0.0)
    reports = [NodeReport(rank, steps=last.step, seconds=last.seconds) for rank in range(nodes)]
    return Trace("", list(rows), reports, {})
