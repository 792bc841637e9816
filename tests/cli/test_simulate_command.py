import csv
import re

import pytest
from typer.testing import CliRunner

from flockstep.cli import app

SMALL = ["--workload", "quadratics(dim=4)", "--nodes", "3", "--steps", "8"]


@pytest.fixture
def simulate(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["simulate", *arguments, "--out", str(tmp_path / "out")])

    return run


@pytest.mark.slow
def test_two_strategies_side_by_side(simulate, tmp_path):
    result = simulate("DataParallel", "CELGC(period=4, gamma=0.001)", *SMALL, "--spread", "0.2")
    assert result.exit_code == 0, result.output
    assert re.search(r"DataParallel\(\): step 0 of 8, loss [\d.]+\n", result.stderr)
    assert "CELGC(period=4, gamma=0.001): step 8 of 8, loss" in result.stderr
    assert "quadratics(dim=4) on 3 virtual nodes: 100 Mbit/s links, 5 ms latency, 50 ms per gradient" in result.stdout
    # 4 floats in a ring of 3: a third of the 16 bytes, rounded up, four times over; every step, or every fourth.
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert re.search(r" 8 +0 *$", lines["DataParallel()"])
    assert re.search(r" 8 +8 *$", lines["CELGC(period=4,"])
    out = tmp_path / "out"
    assert f"Picture: {out / 'simulate.png'}\nRows:    {out / 'simulate.csv'}\n" in result.stdout
    assert (out / "simulate.png").read_bytes().startswith(b"\x89PNG")
    with (out / "simulate.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == [*map(str, range(9))] * 2
    assert {row["strategy"] for row in rows} == {"DataParallel()", "CELGC(period=4, gamma=0.001)"}
    assert float(rows[8]["bytes"]) == 4 * float(rows[-1]["bytes"]) > 0
    assert float(rows[8]["loss"]) < float(rows[0]["loss"])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
@pytest.mark.slow
def test_every_optimizer(simulate, optimizer):
    assert simulate("LocalSGD(period=2)", *SMALL, "--optimizer", optimizer).exit_code == 0


@pytest.mark.slow
def test_one_seed_one_outcome(simulate, tmp_path):
    texts = []
    for seed in ("1", "1", "2"):
        assert simulate("DataParallel", *SMALL, "--seed", seed).exit_code == 0
        texts.append((tmp_path / "out" / "simulate.csv").read_text())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.slow
def test_a_straggler_costs_time(simulate, tmp_path):
    ends = []
    for more in ([], ["--straggler", "1:4x"], ["--slowdown", "1:4x@0s+1h"]):
        assert simulate("DataParallel", *SMALL, *more).exit_code == 0
        with (tmp_path / "out" / "simulate.csv").open() as file:
            ends.append(float(list(csv.DictReader(file))[-1]["seconds"]))
    assert ends[1] > 3 * ends[0]
    assert ends[2] > 3 * ends[0]


@pytest.mark.parametrize("fault", [["--pause", "1@200ms+5s"], ["--partition", "0|1,2@200ms+5s"]])
@pytest.mark.cases(check=1)
@pytest.mark.slow
def test_what_stands_still_for_a_while_costs_that_while_and_no_number(simulate, tmp_path, fault):
    rows = []
    for more in ([], fault, ["--drop", "1"]):
        result = simulate("DataParallel", *SMALL, *more)
        assert result.exit_code == 0, result.output
        with (tmp_path / "out" / "simulate.csv").open() as file:
            rows.append(list(csv.DictReader(file)))
    plain, late, lossy = rows
    # Up to rounding: without faults all nodes are one matrix.
    losses = [[float(row["loss"]) for row in each] for each in (plain, late, lossy)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert float(late[-1]["seconds"]) == pytest.approx(float(plain[-1]["seconds"]) + 5, abs=0.1)
    # Collectives are streams: no question is asked, none is lost.
    assert losses[1] == losses[2]
    assert [row["bytes"] for row in plain] == [row["bytes"] for row in lossy]
    assert float(plain[-1]["seconds"]) == pytest.approx(float(lossy[-1]["seconds"]))


@pytest.mark.slow
def test_a_lost_node_still_shows_what_there_was(simulate, tmp_path):
    result = simulate("DataParallel", "LocalSGD(period=8)", *SMALL, "--crash", "2@200ms")
    assert result.exit_code == 1
    assert "DataParallel(), ended early" in result.stdout
    assert re.search(r"^DataParallel\(\) ended early: LostPeer at [\d.]+ s: node \d was in mean", result.stderr, re.M)
    assert (tmp_path / "out" / "simulate.png").exists()
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_a_run_that_diverges_says_when(simulate):
    result = simulate("LocalSGD(period=8)", *SMALL, "--lr", "1e30")
    assert result.exit_code == 1
    assert re.search(
        r"LocalSGD\(period=8\) ended early: Diverged at .* the loss of the average model is", result.stderr
    )


MISTAKES = [
    (["Nonsense"], 2, "there is no strategy 'Nonsense'; there are"),
    (["CELGC(period=0, gamma=1.0)"], 2, "CELGC.period must be at least 1, got 0"),
    (
        ["LocalSGD(period=2, clip=Exact())"],
        2,
        "LocalSGD.clip must be a clip such as ClipNorm(max_norm=1.0), got Exact()",
    ),
    (["DataParallel", "--workload", "mnist"], 2, "there is no workload 'mnist'; there are logistic"),
    (["DataParallel", "--nodes", "0"], 2, "simulate.nodes must be at least 1, got 0"),
    (["DataParallel", "--steps", "-1"], 2, "simulate.steps must be at least 1, got -1"),
    (["DataParallel", "--lr", "0"], 2, "simulate.lr must be positive, got 0"),
    (["DataParallel", "--lr", "nan"], 2, "simulate.lr must be finite, got nan"),
    (["DataParallel", "--threads", "0"], 2, "simulate.threads must be at least 1, got 0"),
    (["DataParallel", "--seed", "-1"], 2, "simulate.seed must be at least 0, got -1"),
    (["DataParallel", "--link", "100"], 2, "Network.bandwidth must be a rate such as '100 Mbit/s'"),
    (["DataParallel", "--link", "100 Mb"], 2, "Network.bandwidth: unknown unit 'Mb' in '100 Mb'"),
    (["DataParallel", "--latency", "-5 ms"], 2, "Network.latency must be a time such as '20 ms'"),
    (["DataParallel", "--step-time", "soon"], 2, "Compute.step must be a time such as"),
    (["DataParallel", "--spread", "-1"], 2, "Compute.spread must not be negative"),
    (["DataParallel", "--straggler", "8:2x"], 2, "Compute.stragglers names node 8, but there are nodes 0 to 7"),
    (["DataParallel", "--straggler", "3"], 2, "cannot read the straggler '3'"),
    (["DataParallel", "--crash", "8@1s"], 2, "simulate.faults names node 8, but there are nodes 0 to 7"),
    (["DataParallel", "--pause", "8@1s+1s"], 2, "simulate.faults names node 8, but there are nodes 0 to 7"),
    (["DataParallel", "--pause", "3@1s"], 2, "cannot read the pause '3@1s'"),
    (["DataParallel", "--partition", "0|8@1s+1s"], 2, "simulate.faults names node 8, but there are nodes 0 to 7"),
    (["DataParallel", "--partition", "0|0@1s+1s"], 2, "Partition.groups names node 0 twice"),
    (["DataParallel", "--drop", "5%"], 2, "cannot read the share of lost messages '5%'"),
    (["DataParallel", "--drop", "2"], 2, "MessageLoss.share must be between 0 and 1, got 2"),
    (["DataParallel", "--workload", "logistic(data='nowhere')"], 1, "there is neither a file 'nowhere' nor"),
    (["EpisodePlus(period=2, gamma=1.0, sampled=9)"], 1, "EpisodePlus.sampled must be at most the number of nodes, 8"),
]


@pytest.mark.parametrize(("arguments", "code", "sentence"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_each_mistake_gets_one_sentence_and_no_traceback(simulate, tmp_path, monkeypatch, arguments, code, sentence):
    (tmp_path / "libsvm").mkdir()
    monkeypatch.setenv("FLOCKSTEP_DATA", str(tmp_path))
    result = simulate(*arguments)
    assert result.exit_code == code
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1 + ("step 0" in result.stderr)
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["simulate", "DataParallel", "--out", str(tmp_path / "file")])
    assert result.exit_code == 1
    assert result.stderr == f"File exists: {tmp_path / 'file'}\n"


def test_debug_shows_the_traceback(simulate):
    result = simulate("LocalSGD(period=0)", "--debug")
    assert isinstance(result.exception, ValueError)


def test_a_missing_strategy_is_a_matter_of_usage(simulate):
    result = simulate()
    assert result.exit_code == 2
    assert "STRATEGY" in result.stderr
