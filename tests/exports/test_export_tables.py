import csv
import json
import math
import sys

import pytest

import flockstep as fs
from flockstep.workloads.convex import Quadratics

HARDWARE = {"network": fs.Network(bandwidth="1 Mbit/s"), "compute": fs.Compute(step="5 ms", spread=0.4)}


@pytest.fixture(scope="module")
def trace():
    return fs.simulate(fs.Swarm(period=2), Quadratics(dim=6), nodes=3, steps=13, timeline=True, **HARDWARE)


def columns(trace):
    """What each table should hold, column by column."""
    rows, nodes, spans, sent = trace.rows, trace.nodes, trace.timeline.spans, trace.timeline.sent
    names = ["rank", "steps", "skipped", "gradients", "bytes_sent", "bytes_received"]
    names += ["computing", "waiting", "talking", "seconds"]
    return {
        "rows": {n: [getattr(r, n) for r in rows] for n in ("seconds", "step", "loss", "bytes", "spread")},
        "nodes": {n: [getattr(node, n) for node in nodes] for n in names}
        | {"counts": [json.dumps(node.counts) for node in nodes], "views": ["[]" for _ in nodes]},
        "spans": {n: [getattr(s, n) for s in spans] for n in ("rank", "kind", "begin", "end")},
        "sent": {
            "sender": [pair[0] for pair in sent],
            "receiver": [pair[1] for pair in sent],
            "bytes": list(sent.values()),
        },
    }


@pytest.mark.parametrize("table", ["rows", "nodes", "spans", "sent"])
def test_csv_and_back_to_the_last_digit(trace, tmp_path, table):
    path = trace.to_csv(tmp_path / "new folder" / "table.csv", table)
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    wanted = columns(trace)[table]
    assert header == list(wanted)
    for name, values in zip(header, zip(*lines, strict=True), strict=True):
        assert [type(value)(text) for text, value in zip(values, wanted[name], strict=True)] == wanted[name]


@pytest.mark.parametrize("table", ["rows", "nodes", "spans", "sent"])
def test_parquet_and_back(trace, tmp_path, table):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_parquet(trace.to_parquet(tmp_path / "new folder" / "table.parquet", table))
    assert {name: frame[name].tolist() for name in frame} == columns(trace)[table]


def test_rows_are_what_is_meant_unless_said(trace, tmp_path):
    assert trace.to_csv(tmp_path / "a.csv").read_text() == trace.to_csv(tmp_path / "b.csv", "rows").read_text()


def test_an_unknown_table_is_refused(trace, tmp_path):
    with pytest.raises(
        ValueError, match=r"to_csv\.table must be one of 'rows', 'nodes', 'spans', 'sent', got 'weather'"
    ):
        trace.to_csv(tmp_path / "a.csv", "weather")


def test_rows_need_no_timeline(tmp_path):
    trace = fs.Trace("S", [fs.Row(0.0, 0, 1.5, 0.0, math.nan)], [], {})
    assert trace.to_csv(tmp_path / "a.csv").read_text() == "seconds,step,loss,bytes,spread\n0.0,0,1.5,0.0,nan\n"
    with pytest.raises(ValueError, match="this run kept no timeline"):
        trace.to_csv(tmp_path / "b.csv", "spans")


def test_parquet_says_what_to_install(trace, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'flockstep\[parquet\]'"):
        trace.to_parquet(tmp_path / "a.parquet")
