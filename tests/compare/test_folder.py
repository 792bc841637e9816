import json
from dataclasses import replace
from pathlib import Path

import pytest

import flockstep as fs
from flockstep.compare.folder import Record, Results, RunWriter, alone, run_file
from flockstep.compare.plan import check_continues
from flockstep.timeline import Timeline
from flockstep.trace import NodeReport, Row

PLAN = Record(
    command="flockstep compare",
    versions={"torch": "2"},
    workload="quadratics",
    cluster={"nodes": 2},
    strategies=["DataParallel()", "LocalSGD(period=2)"],
    labels=["DataParallel", "LocalSGD"],
    optimizers=["SGD(lr=0.1)", "SGD(lr=0.1)"],
    seeds=[0, 1],
    steps=4,
    samples_per_step=2,
    samples="gradients",
    real=False,
    target=None,
)
ROW = Row(1.0, 4, 0.5, 100.0, 0.25)


def trace(strategy, timeline=None):
    return fs.Trace(strategy, [ROW], [NodeReport(0, steps=4, seconds=1.0), NodeReport(1)], {}, timeline=timeline)


def keep(out, index, seed, *, failure=None, timeline=None, strategy=None, optimizer="SGD(lr=0.1)"):
    with RunWriter(run_file(out, index, seed), optimizer=optimizer) as writer:
        writer.row(ROW)
        writer.done(trace(strategy or PLAN.strategies[index], timeline), failure)


def test_what_is_written_is_read(tmp_path):
    PLAN.write(tmp_path)
    timeline = Timeline()
    timeline.spend(0, "computing", 0.0, 1.0)
    keep(tmp_path, 0, 0, timeline=timeline)
    keep(tmp_path, 0, 1)
    keep(tmp_path, 1, 1, failure="Deadlock: it stopped")
    results = Results.read(tmp_path)
    assert results.plan == PLAN
    assert [[(run.seed, run.failure) for run in line] for line in results.runs] == [
        [(0, None), (1, None)],
        [(1, "Deadlock: it stopped")],
    ]
    first, second = results.runs[0]
    assert first.trace.timeline.spans == timeline.spans
    assert second.trace.timeline is None
    assert second.trace.rows == [ROW]
    assert second.trace.nodes == trace("").nodes


def test_a_run_without_its_last_line_is_not_there(tmp_path):
    PLAN.write(tmp_path)
    with RunWriter(run_file(tmp_path, 0, 1), optimizer="SGD(lr=0.1)") as writer:
        writer.row(ROW)
        assert Results.read(tmp_path).runs == [[], []]
        assert json.loads(run_file(tmp_path, 0, 1).read_text()) == {"row": ROW.__dict__}
        writer.done(trace("DataParallel()"), None)
    assert len(Results.read(tmp_path).runs[0]) == 1
    text = run_file(tmp_path, 0, 1).read_text()
    for torn in (text[:-10], text[: text.index('{"done')], ""):
        run_file(tmp_path, 0, 1).write_text(torn)
        assert Results.read(tmp_path).runs == [[], []]


def test_a_run_of_something_else_is_not_taken_for_the_planned_one(tmp_path):
    PLAN.write(tmp_path)
    keep(tmp_path, 0, 1, strategy="Swarm()")
    keep(tmp_path, 1, 1, optimizer="SGD(lr=0.2)")
    # The first seed has a timeline, or it is not the one that is wanted.
    keep(tmp_path, 0, 0)
    assert Results.read(tmp_path).runs == [[], []]


def test_folders_that_hold_no_comparison_or_one_of_another_version(tmp_path):
    with pytest.raises(ValueError, match=r"there is no plan\.json"):
        Results.read(tmp_path)
    PLAN.write(tmp_path)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    with pytest.raises(ValueError, match="another version of flockstep: colour differ"):
        Results.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"command": "flockstep compare --target 3", "target": 3.0},
        {"seeds": [0, 1, 2]},
        {"strategies": [*PLAN.strategies, "Swarm()"], "optimizers": [*PLAN.optimizers, "SGD(lr=0.1)"]},
        {"strategies": PLAN.strategies[:1], "optimizers": PLAN.optimizers[:1], "labels": ["x"]},
    ],
)
def test_what_only_adds_or_looks_differently_goes_on(change):
    check_continues(replace(PLAN, **change), PLAN, Path("out"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps": 5}, "steps 4 and not 5"),
        ({"workload": "logistic"}, "workload quadratics and not logistic"),
        ({"versions": {"torch": "3"}}, "versions"),
        ({"optimizers": ["SGD(lr=0.1)", "SGD(lr=0.3)"]}, "optimizers"),
        ({"strategies": ["Swarm()", "LocalSGD(period=2)"]}, "DataParallel.* and not Swarm"),
        ({"real": True}, "real False and not True"),
    ],
)
def test_what_is_another_comparison_is_refused(change, told):
    with pytest.raises(ValueError, match=f"out holds another comparison, with .*{told}"):
        check_continues(replace(PLAN, **change), PLAN, Path("out"))


def test_nobody_else_is_let_in(tmp_path):
    with alone(tmp_path), pytest.raises(ValueError, match="another comparison is at work"), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass
