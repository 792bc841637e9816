"""Comparisons on real processes: on this machine's own links, and where it allows, on limited ones."""

import pytest
import warm
from comparisons import made
from test_runner import Listening

from flockstep.compare import real, runner
from flockstep.compare.folder import Results
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab

OWN_LOOP = """
import torch
import flockstep as fs

def train(strategy, seed):
    model = torch.nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(fs.rank()))
    y = x.sum(1, keepdim=True)
    print("a line of the user's own")
    with fs.join(model, optimizer, strategy) as node:
        for step in range(8):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            node.log(loss.item())
"""


@pytest.fixture
def looped(tmp_path, monkeypatch):
    (tmp_path / "my_real_things.py").write_text(OWN_LOOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "my_real_things:train"


def ran(out, **given):
    comparison, listening = made(seeds=1, **given), Listening()
    todo = runner.prepare(comparison, out, fresh=False)
    results = runner.run_all(comparison, out, todo, listening, workers=1)
    assert [words[1] for words in listening.of("begin")] == todo
    return results, listening


def check_real_runs(results, nodes):
    assert results.plan.real
    for (outcome,), strategy in zip(results.runs, results.plan.strategies, strict=True):
        assert outcome.failure is None
        assert outcome.trace.strategy == strategy
        assert len(outcome.trace.nodes) == nodes
        assert outcome.trace.rows[-1].loss < outcome.trace.rows[0].loss
        assert {span.rank for span in outcome.trace.timeline.spans} == set(range(nodes))


@pytest.mark.slow
def test_real_processes_on_this_machines_own_links(tmp_path):
    results, listening = ran(tmp_path, strategies=["DataParallel", "Swarm(period=2)"], real=True)
    check_real_runs(results, 2)
    assert results.plan.cluster == {"nodes": 2, "link": None, "links": "this machine's own links"}
    assert listening.of("progress")
    assert results == Results.read(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("virtual", [False, True])
def test_a_loop_of_ones_own_real_and_virtual(tmp_path, looped, virtual):
    results, _ = ran(
        tmp_path / "out", strategies=["DataParallel", "LocalSGD(period=2)"], workload=looped, real=not virtual
    )
    for (outcome,) in results.runs:
        assert len(outcome.trace.rows) == 8
        assert outcome.failure is None
        assert outcome.trace.loss < outcome.trace.rows[0].loss
    assert results.plan.optimizers == ["its own", "its own"]
    assert results.plan.steps == 0


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_limited_links(tmp_path, looped, own, monkeypatch):
    try:
        with Lab():
            pass
    except Missing as reason:
        pytest.skip(f"no slow links here: {reason}")
    given = {"workload": looped, "strategies": ["DataParallel"]} if own else {"strategies": ["Swarm(period=2)"]}
    monkeypatch.setattr("sys.executable", warm.stub())
    results, _ = ran(tmp_path / "out", real=True, nodes=2, link="50 Mbit/s", **given)
    check_real_runs(results, 2)
    assert results.plan.cluster["links"] == "50 Mbit/s links between network namespaces"


def test_where_links_cannot_be_limited_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: name)
    comparison = made(strategies=["DataParallel"], real=True, link="50 Mbit/s")
    with pytest.raises(ValueError, match=r"cannot be limited to 50 Mbit/s here: .*need root.*\n  leave --link out"):
        real.run_in_turn(comparison, tmp_path, [runner.Run(0, 0)], Listening())
