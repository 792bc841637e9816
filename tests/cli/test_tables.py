import csv
import io

from rich.console import Console

import flockstep as fs
from flockstep.cli.support import report
from flockstep.trace import NodeReport, Row, Trace


def made(name="CELGC(period=8, gamma=1.0)", rows=1, *counts):
    rows = [Row(float(k), k, 2.0 - k, 10.0 * k, 0.0) for k in range(rows)]
    nodes = [NodeReport(r, steps=4, bytes_sent=1500, computing=1.0, seconds=4.0) for r in range(2)]
    nodes[0].counts.update(dict(counts))
    return Trace(name, rows, nodes, {})


def drawn(*runs, **options):
    console = Console(file=io.StringIO(), width=120)
    console.print(report.table(runs, title="about", **options))
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_a_line_says_it_all():
    told = drawn(report.Run("here", made()), seconds="virtual seconds")
    assert "CELGC(period=8, gamma=1.0) 2 1.5 kB 4 25% 4" in told
    assert "virtual seconds" in told
    assert "where" not in told
    assert "clipped" not in told
    assert "skipped" not in told


def test_places_are_named_where_they_differ():
    told = drawn(report.Run("here", made()), report.Run("there", made()))
    assert "where" in told
    assert "there CELGC(period=8, gamma=1.0)" in told


def test_counts_have_columns_where_something_was_counted():
    skipping = made("LocalSGD(period=2)")
    skipping.nodes[1].skipped = 3
    told = drawn(report.Run("", made("A()", 1, ("clipped", 5))), report.Run("", skipping))
    assert "steps clipped skipped" in told
    assert "A() 2 1.5 kB 4 25% 4 2.5 0" in told
    assert "LocalSGD(period=2) 2 1.5 kB 4 25% 4 0 1.5" in told


def test_without_details_a_strategy_is_its_name():
    told = drawn(report.Run("", made("A(b=1)", 1, ("clipped", 5))), details=False)
    assert "A 2 1.5 kB 4 25%" in told
    assert "clipped" not in told
    assert "steps" not in told


def test_a_race_is_among_the_runs_of_a_place():
    near, far, elsewhere = made("A()", 2), made("B()", 3), made("C()", 3)
    told = drawn(*map(report.Run, ("here", "here", "there"), (near, far, elsewhere)), details=False, race=True)
    assert "here A 1 1.5 kB 4 1 25%" in told
    assert "here B 0 1.5 kB 4 1 25%" in told
    assert "there C 0 1.5 kB 4 2 25%" in told


def test_a_run_that_ended_early_says_so_even_without_rows():
    told = drawn(report.Run("", made("A()", 0), fs.LostPeer("node 1 is gone")))
    assert "A(), ended early - 1.5 kB" in told


def test_rows_become_a_file(tmp_path):
    path = report.write_rows([report.Run("here", made(rows=3))], tmp_path / "new" / "rows.csv")
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert [line["step"] for line in lines] == ["0", "1", "2"]
    assert lines[2] == {
        "where": "here",
        "strategy": "CELGC(period=8, gamma=1.0)",
        "seconds": "2.0",
        "step": "2",
        "loss": "0.0",
        "bytes": "20.0",
        "spread": "0.0",
    }
