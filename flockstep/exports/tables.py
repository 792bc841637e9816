"""A trace as tables: its rows, its nodes, its spans, and who sent how much to whom."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from flockstep import check
from flockstep.timeline import Span
from flockstep.trace import NodeReport, Row, Trace

Table = tuple[list[str], list[tuple[Any, ...]]]
"""The names of the columns, and the lines."""


def write_csv(trace: Trace, path: Path, table: str) -> None:
    """Write one table as comma-separated values, numbers to the last digit."""
    columns, lines = _table(trace, table, "to_csv")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(lines)


def write_parquet(trace: Trace, path: Path, table: str) -> None:
    """Write one table as Parquet."""
    columns, lines = _table(trace, table, "to_parquet")
    try:
        import pandas as pd

        pd.DataFrame(lines, columns=columns).to_parquet(path, engine="pyarrow", index=False)
    except ImportError as error:
        raise ImportError("to_parquet needs pandas and pyarrow: pip install 'flockstep[parquet]'") from error


def _table(trace: Trace, name: str, verb: str) -> Table:
    check.one_of(verb, "table", name, _TABLES)
    return _TABLES[name](trace)


_SEVERAL = ("counts", "views")


def _rows(trace: Trace) -> Table:
    return [field.name for field in fields(Row)], [tuple(asdict(row).values()) for row in trace.rows]


def _nodes(trace: Trace) -> Table:
    plain = [asdict(node) for node in trace.nodes]
    # What strategies count differs: one column for all of it.
    lines = [tuple(json.dumps(value) if name in _SEVERAL else value for name, value in node.items()) for node in plain]
    return [field.name for field in fields(NodeReport)], lines


def _spans(trace: Trace) -> Table:
    return list(Span._fields), [tuple(span) for span in trace.kept_timeline().spans]


def _sent(trace: Trace) -> Table:
    return ["sender", "receiver", "bytes"], [(*pair, nbytes) for pair, nbytes in trace.kept_timeline().sent.items()]


_TABLES: dict[str, Callable[[Trace], Table]] = {"rows": _rows, "nodes": _nodes, "spans": _spans, "sent": _sent}
