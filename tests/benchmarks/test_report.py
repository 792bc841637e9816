import csv
import json
import sys

import pytest

from benchmarks.report import Progress, arguments, finish, keep, table, versions

ROWS = [{"n": 1, "ratio": 1.23456}, {"n": 16, "note": "late"}]


def test_a_table_has_a_column_per_key_and_a_line_per_row():
    lines = table(ROWS, "Title").splitlines()
    assert lines[0] == "Title"
    assert lines[1].split() == ["n", "ratio", "note"]
    assert set(lines[2]) == {"-", " "}
    assert lines[3].split() == ["1", "1.235"]
    assert lines[4].split() == ["16", "late"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_a_table_without_a_title_starts_with_its_columns():
    assert table(ROWS).splitlines() == table(ROWS, "Title").splitlines()[1:]


def test_kept_rows_say_how_they_were_made(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "--rate", "1 Mbit/s", "--out", "some where"])
    path = keep("benchmarks.example", ROWS, tmp_path / "new")
    assert path == tmp_path / "new" / "example.csv"
    made, ran_on, *lines = path.read_text().splitlines()
    assert made.startswith("# python -m ")
    assert made.endswith(" --rate '1 Mbit/s'")
    assert ran_on == f"# {versions()}"
    assert list(csv.DictReader(lines)) == [
        {"n": "1", "ratio": "1.23456", "note": ""},
        {"n": "16", "ratio": "", "note": "late"},
    ]


def test_keeping_again_replaces_the_rows(tmp_path):
    keep("benchmarks.example", ROWS, tmp_path)
    path = keep("benchmarks.example", ROWS[:1], tmp_path)
    assert len(path.read_text().splitlines()) == 4


def test_the_end_shows_every_bar_and_is_one_json_object(tmp_path, capsys):
    met = {"at most 3": True, "at least 6": False}
    finish("benchmarks.example", ROWS, figures={"ratio": 2.5}, met=met, folder=tmp_path, note="A note.")
    *told, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == {"name": "benchmarks.example", "ratio": 2.5, "met": met}
    assert told[: len(ROWS) + 2] == table(ROWS).splitlines()
    assert "A note." in told
    assert f"rows kept in {tmp_path / 'example.csv'}" in told
    assert [line.split(maxsplit=1) for line in told[-2:]] == [["met", "at most 3"], ["NOT", "met  at least 6"]]


def test_rows_are_kept_only_where_a_folder_is_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    finish("benchmarks.example", ROWS, figures={}, met={}, folder=None)
    assert "rows kept" not in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_on_stderr_and_guesses_the_rest(capsys):
    progress = Progress(2)
    progress("first")
    progress("second")
    told = capsys.readouterr()
    assert told.out == ""
    first, second = told.err.splitlines()
    assert first.startswith("[1/2] first (")
    assert "left" not in first
    assert second.startswith("[2/2] second (")
    assert second.endswith(" s left)")


@pytest.mark.parametrize(("given", "quick", "out"), [([], False, None), (["--quick", "--out", "x"], True, "x")])
def test_every_benchmark_has_these_options(given, quick, out):
    options = arguments("benchmarks.example", "What it is for.").parse_args(given)
    assert options.quick is quick
    assert (options.out and str(options.out)) == out
