import csv
import re

import pytest
from typer.testing import CliRunner

import flockstep as fs
from flockstep.cli import app, demo
from flockstep.trace import NodeReport


def test_the_time_of_a_gradient_is_that_of_all_nodes():
    nodes = [NodeReport(0, gradients=2, computing=1.0), NodeReport(1, gradients=2, computing=3.0)]
    assert demo.seconds_per_gradient([fs.Trace("A()", [], nodes, {})]) == 1.0


NAMES = ["DataParallel", "CELGC", "Swarm", "DPSGD", "SClipEF", "HPSGD"]


def test_all_five_stand_beside_what_one_would_take_otherwise():
    assert [type(strategy).__name__ for strategy in demo.FULL.strategies] == NAMES
    assert "8 virtual nodes" in demo.HELP
    assert demo.FULL.places == ("2 real processes", "8 virtual nodes")


@pytest.mark.thorough
def test_the_quick_demo(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    for where in demo.QUICK.places:
        for strategy in NAMES:
            assert re.search(rf"{where} {strategy} [\d.]+ [\d.]+ [kM]B [\d.]+ [\d.]+ \d+%", said)
            assert f"{where}, {strategy}: step 0 of 40, loss 4.1" in result.stderr
        order = re.search(
            rf"On {where} they reached a loss of [\d.]+ in this order: (.*? m?s)\. The least was sent by", said
        )[1]
        assert sorted(re.findall(r"(\w+) after", order)) == sorted(NAMES)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert f"Picture: {tmp_path / 'demo.png'}" in result.stdout
    assert f"Report:  {tmp_path / 'report.html'}, of the virtual nodes" in result.stdout
    page = (tmp_path / "report.html").read_text()
    assert "flockstep demo" in page
    assert "CELGC(period=8)" in page
    with (tmp_path / "table.csv").open() as file:
        assert [line["label"] for line in csv.DictReader(file)] == NAMES
    with (tmp_path / "demo.csv").open() as file:
        rows = list(csv.DictReader(file))
    runs = {(row["where"], row["strategy"]) for row in rows}
    assert len(runs) == 12
    for run in runs:
        losses = [float(row["loss"]) for row in rows if (row["where"], row["strategy"]) == run]
        assert losses[-1] < 3.5 < 4.1 < losses[0]
