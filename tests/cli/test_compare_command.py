import csv
import io
import json
import re
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flockstep.cli import app
from flockstep.cli.support.compare_progress import Bars
from flockstep.compare.runner import Run

SMALL = ["--workload", "quadratics(dim=4)", "--nodes", "3", "--steps", "8"]
REPORT = ("report.html", "report.png", "rows.csv", "table.csv")


@pytest.fixture
def run(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["compare", *arguments, "--out", str(tmp_path / "out")])

    return run


@pytest.mark.slow
def test_a_comparison_from_the_table_to_the_files(run, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    plan = tmp_path / "plan.toml"
    plan.write_text('strategies = ["DataParallel", {strategy = "LocalSGD(period=4)", label = "mine"}]\nseeds = 2\n')
    result = run(str(plan), *SMALL, "--straggler", "1:3x", "--open")
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    said = " ".join(result.stdout.split())
    assert "quadratics(dim=4) on 3 virtual nodes, 100 Mbit/s links, 20 ms latency, 50 ms per gradient" in said
    assert re.search(r"DataParallel [\d.]+ ± [\d.e-]+ [\d.]+ 1 [\d.]+ k?B 0 \d+%", said)
    assert re.search(r"mine [\d.]+ ± [\d.e-]+ [\d.]+ [\d.]+ [\d.]+ k?B [\d.e-]+ \d+%", said)
    for name, file in zip(("Report:  ", "Picture: ", "Rows:    ", "Table:   "), REPORT, strict=True):
        assert f"{name}{out / file}\n" in result.stdout
        assert (out / file).stat().st_size > 100
    assert shown == [(out / "report.html").as_uri()]
    assert re.search(r"mine, seed 1: loss [\d.]+ \(run \d of 4", result.stderr)
    kept = json.loads((out / "plan.json").read_text())
    assert kept["command"].endswith("--workload 'quadratics(dim=4)' --nodes 3 --steps 8 --straggler 1:3x")
    assert kept["seeds"] == [0, 1]
    with (out / "table.csv").open() as file:
        assert [line["label"] for line in csv.DictReader(file)] == ["DataParallel", "mine"]


@pytest.mark.thorough
def test_a_search_for_rates_is_shown_and_taken_and_not_run_twice(run, tmp_path):
    """Quadratics with curvatures up to 1: a rate of 100 cannot be good, one of 1e-9 goes nowhere."""
    command = ["DataParallel", "LocalSGD(period=4)", *SMALL, "--rates", "1e-9,0.1,100", "--seeds", "2"]
    result, out = run(*command), tmp_path / "out"
    assert result.exit_code == 0, result.output
    told = re.findall(
        r"^(\w+): 1e-09 gave [\d.]+, 0.1 gave [\d.]+, 100 (?:failed|gave \S+); 0.1 is taken$", result.stdout, re.M
    )
    assert told == ["DataParallel", "LocalSGD"]
    kept = json.loads((out / "plan.json").read_text())
    assert kept["optimizers"] == ["SGD(lr=0.1)"] * 2
    assert [line.partition(":")[0] for line in kept["search"]] == told
    assert "searched with seed 0" in (out / "report.html").read_text()
    for index, place in enumerate((1, 4)):
        tried = out / "search" / "runs" / f"{place:02d}-0.jsonl"
        assert (out / "runs" / f"{index:02d}-0.jsonl").read_bytes() == tried.read_bytes()
    before = {file: (out / file).read_bytes() for file in ("plan.json", *REPORT)}
    again = run(*command)
    assert again.exit_code == 0, again.output
    assert "4 of 4 runs are in" in again.stderr.replace("\n", " ")
    assert {file: (out / file).read_bytes() for file in before} == before
    assert run(*command, "--fresh").exit_code == 0
    assert {file: (out / file).read_bytes() for file in REPORT[2:]} == {file: before[file] for file in REPORT[2:]}


@pytest.mark.slow
def test_a_failure_is_a_line_of_the_report(run, tmp_path):
    result = run("DataParallel", "Swarm(period=2)", *SMALL, "--crash", "2@200ms", "--seeds", "1")
    assert result.exit_code == 1
    assert re.search(r"^DataParallel with seed 0 ended early: LostPeer at", result.stderr, re.M)
    assert "DataParallel, ended early" in result.stdout
    assert (tmp_path / "out" / "report.html").exists()
    assert "Traceback" not in result.output


MISTAKES = [
    (["Nonsense"], "there is no strategy 'Nonsense'"),
    (["DataParallel", "DataParallel"], "is named twice"),
    (["DataParallel", "--nodes", "0"], "compare.nodes must be at least 1, got 0"),
    (["DataParallel", "--seeds", "0"], "compare.seeds must be at least 1, got 0"),
    (["DataParallel", "--workers", "0"], "compare.workers must be at least 1, got 0"),
    (["DataParallel", "--workload", "nowhere_at_all:train"], "there is no module 'nowhere_at_all'"),
    (["DataParallel", "--straggler", "16:2x"], "names node 16, but there are nodes 0 to 15"),
    (["--real", "--straggler", "1:2x"], "--straggler can be declared for virtual nodes only"),
    (["--real", "--crash", "1@2s"], "--crash can be declared for virtual nodes only"),
    (["DataParallel", "--rates", "0.1,much"], "--rates are numbers with commas between"),
    (["DataParallel", "--rates", "0.1,-1"], "compare.rates must be positive, got -1"),
    (["DataParallel", "--rates", "0.1,0.1"], "compare.rates must be different numbers"),
    (["DataParallel", "--rates", "0.1,1", "--lr", "0.5"], "give one of the two"),
    (["no-such-plan.toml"], "No such file or directory: no-such-plan.toml"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_each_mistake_gets_one_sentence_and_leaves_nothing(run, tmp_path, arguments, sentence):
    result = run(*arguments)
    assert result.exit_code == (1 if "No such file" in sentence else 2)
    assert sentence in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_without_the_plotting_library_nothing_is_run(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    result = run("DataParallel", *SMALL)
    assert result.exit_code == 2
    assert 'the page needs plotly: pip install "flockstep[compare]"' in result.stderr
    assert not (tmp_path / "out").exists()


def test_help_teaches_with_examples():
    told = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "120"}).stdout
    for words in (
        "flockstep compare plan.toml",
        "--workload my_training:train",
        "--real",
        "--straggler 3:4x",
        "--open",
    ):
        assert words in told


def bars(todo, **how):
    console = Console(file=io.StringIO(), **how)
    return console, Bars(console, ["first", "second [x]"], seeds=2, steps=10, todo=todo)


def test_without_a_terminal_every_run_is_a_line(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("flockstep.cli.support.compare_progress.time.monotonic", lambda: now[0])
    todo = [Run(1, 0), Run(0, 1), Run(1, 1)]
    console, shown = bars(todo)
    with shown:
        for run in todo:
            shown.begin(run)
            now[0] += 30.0
            shown.progress(run, 10, 0.5)
            shown.end(run, "Deadlock: stuck" if run.index == 0 else None)
            shown.warn(run, "it is late")
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "second [x], seed 0: loss 0.5 (run 1 of 3, 60 s left)",
        "first, seed 1: failed: Deadlock: stuck (run 2 of 3, 30 s left)",
        "second [x], seed 1: loss 0.5 (run 3 of 3)",
    ]
    assert shown.warnings == ["second [x]: it is late", "first: it is late"]


def test_on_a_terminal_every_strategy_has_a_bar():
    todo = [Run(1, 0), Run(1, 1)]
    console, shown = bars(todo, force_terminal=True, width=100, legacy_windows=False, color_system=None)
    with shown:
        shown.begin(todo[0])
        shown.progress(todo[0], 5, 0.25)
        shown.progress(todo[0], 10, 0.125)
        shown.end(todo[0], None)
    *_, strategies, rest = console.file.getvalue().split("all together")
    assert re.search(r"first .* 2 of 2 seeds", strategies)
    assert re.search(r"second \[x\] .* 1 of 2 seeds +loss 0\.125", strategies)
    assert " left" in rest
