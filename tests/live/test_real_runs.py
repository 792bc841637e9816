"""Journals of real runs say what their traces say."""

import functools

import pytest
import torch

import flockstep as fs
from flockstep.live.reader import Reader
from flockstep.live.state import state
from flockstep.timeline import KINDS
from flockstep.workloads.convex import Quadratics


def launch(folder, monkeypatch, strategy, nodes, on="threads"):
    monkeypatch.setenv("FLOCKSTEP_JOURNAL", str(folder))
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    trace = fs.launch(strategy, Quadratics(dim=16), nodes=nodes, steps=30, optimizer=sgd, record_every=10, on=on)
    reader = Reader(folder)
    return trace, reader.look(), state(reader.look(), reader.clock())


def agree(trace, lives, told, nodes):
    assert [node["state"] for node in told["nodes"]] == ["done"] * nodes
    assert told["ended"]
    for life, report in zip(lives, trace.nodes, strict=True):
        assert life.steps == report.steps == 30
        assert sum(life.sent.values()) == report.bytes_sent
        for kind in KINDS:
            assert life.seconds[kind] == pytest.approx(getattr(report, kind), abs=1e-3)
    assert {round(row["loss"], 9) for rows in told["rows"].values() for row in rows} >= {
        round(row.loss, 9) for row in trace.rows
    }


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("strategy", [fs.LocalSGD(period=4), fs.Swarm(period=4)], ids=["together", "one-sided"])
def test_threads(tmp_path, monkeypatch, strategy, nodes):
    agree(*launch(tmp_path, monkeypatch, strategy, nodes), nodes)  # type: ignore[call-arg]


@pytest.mark.slow
def test_processes(tmp_path, monkeypatch):
    trace, lives, told = launch(tmp_path, monkeypatch, fs.Swarm(period=4), 3, on="processes")
    agree(trace, lives, told, 3)
    assert len({life.pid for life in lives}) == 3
    assert all(node["last_to"] is not None for node in told["nodes"])


def test_a_node_that_fails_says_so(tmp_path, monkeypatch):
    class Breaks:
        async def run(self, node):
            async for k in node.steps():
                await node.step(await node.gradient(node.params))
                if k == 3 and node.rank == 1:
                    raise RuntimeError("out of luck")
                await node.mean(node.params)

    with pytest.raises(fs.FlockstepError):
        launch(tmp_path, monkeypatch, Breaks(), 2)
    reader = Reader(tmp_path)
    told = state(reader.look(), reader.clock())
    assert told["nodes"][1]["state"] == "failed"
    assert "out of luck" in told["nodes"][1]["why"]
