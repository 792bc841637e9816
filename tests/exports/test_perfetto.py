"""The file that Perfetto reads: held to the format here, and to the real trace processor."""

import json
import math
from itertools import pairwise

import pytest
from perfetto_processor import query

import flockstep as fs
from flockstep.timeline import KINDS
from flockstep.workloads.convex import Quadratics


@pytest.fixture(scope="module")
def trace():
    return fs.simulate(
        fs.HPSGD(period=3),
        Quadratics(dim=6),
        nodes=3,
        steps=13,
        network=fs.Network(bandwidth="1 Mbit/s", latency="3 ms"),
        compute=fs.Compute(step="5 ms", spread=0.4, stragglers={1: 3.0}),
        timeline=True,
    )


@pytest.fixture(scope="module")
def path(trace, tmp_path_factory):
    return trace.to_perfetto(tmp_path_factory.mktemp("perfetto") / "new folder" / "run.json")


def test_every_event_is_as_the_format_wants_it(trace, path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    plain = json.loads(path.read_text(), parse_constant=refuse)
    assert set(plain) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert plain["otherData"]["strategy"] == trace.strategy
    needed = {"M": {"tid", "args"}, "X": {"tid", "dur", "cat"}, "C": {"args"}}
    for event in plain["traceEvents"]:
        assert set(event) - {"ts"} == {"ph", "pid", "name"} | needed[event["ph"]]
        assert isinstance(event["pid"], int)
        assert event["pid"] > 0
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["name"] in KINDS
            assert event["dur"] > 0
    slices = [event for event in plain["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(trace.timeline.spans)


def test_neighbours_stay_neighbours(trace, path):
    events = json.loads(path.read_text())["traceEvents"]
    for rank in range(3):
        mine = sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == rank + 1)
        for (begin, length), (following, _) in pairwise(mine):
            assert round(1000 * (begin + length)) <= round(1000 * following)


@pytest.mark.slow
def test_the_trace_processor_finds_the_reported_seconds(trace, path):
    seconds, names, counters, errors, depths = query(
        path,
        """select process.pid, slice.name, sum(slice.dur) as total, count() as number from slice
           join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
           group by process.pid, slice.name""",
        "select pid, name from process where pid > 0 order by pid",
        """select process_counter_track.name, counter.ts, counter.value from counter
           join process_counter_track on counter.track_id = process_counter_track.id order by counter.ts""",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select max(depth) as deepest from slice",
    )
    assert errors == []
    assert depths == [{"deepest": 0}]
    assert [(each["pid"], each["name"]) for each in names] == [
        (1, "node 0"),
        (2, "node 1"),
        (3, "node 2"),
        (4, "the run"),
    ]
    found = {(each["pid"] - 1, each["name"]): each for each in seconds}
    for node in trace.nodes:
        for kind in KINDS:
            each = found.get((node.rank, kind), {"total": 0, "number": 0})
            # Each end of a slice is rounded to a nanosecond.
            assert each["total"] / 1e9 == pytest.approx(getattr(node, kind), rel=0, abs=1e-9 * (1 + each["number"]))
    losses = [(each["ts"], each["value"]) for each in counters if each["name"] == "loss value"]
    assert [ts for ts, _ in losses] == [round(row.seconds * 1e9) for row in trace.rows]
    # It reads decimals its own way, and may miss the last digit.
    assert [loss for _, loss in losses] == pytest.approx([row.loss for row in trace.rows], rel=1e-12)


def test_what_is_not_finite_is_left_out(tmp_path, trace):
    rows = [fs.Row(0.0, 0, 1.5, 0.0, math.nan)]
    path = fs.Trace("S", rows, trace.nodes, {}, timeline=trace.timeline).to_perfetto(tmp_path / "run.json")
    counters = [e["name"] for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "C"]
    assert counters == ["loss", "bytes sent per node"]


def test_without_a_timeline_there_is_nothing_to_write(tmp_path):
    trace = fs.simulate(fs.LocalSGD(period=3), Quadratics(dim=3), nodes=2, steps=4)
    with pytest.raises(
        ValueError, match=r"this run kept no timeline\n  ask for one: simulate\(\.\.\., timeline=True\)"
    ):
        trace.to_perfetto(tmp_path / "run.json")
