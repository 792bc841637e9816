import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flockstep
from flockstep.cli import app, commands


def helped(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "100", "TERM": "dumb"})
    assert result.exit_code == 0
    return " ".join(result.stdout.split())


def test_the_program_teaches_what_to_try_first():
    told = helped()
    assert "Train in a flock, not in lockstep" in told
    assert "The first thing to try" in told
    assert "flockstep demo" in told
    assert 'flockstep simulate DataParallel "LocalSGD(period=8)" --link "20 Mbit/s"' in told


def test_no_arguments_is_a_question():
    assert "The first thing to try" in CliRunner().invoke(app, []).output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("demo", ["2 real processes", "8 virtual nodes", "DataParallel", "CELGC", "HPSGD", "--quick", "--out"]),
        ("simulate", ["Examples", "--workload", "quadratics", "shakespeare", "3:4x", "5@60s", "--optimizer"]),
    ],
)
def test_every_command_teaches(command, words):
    told = helped(command)
    assert all(word in told for word in words)


def test_the_examples_of_the_help_can_be_read():
    from flockstep.cli import simulate
    from flockstep.texts import parse

    text = simulate.HELP
    strategies = [part for part in text.split('"') if part.startswith(("LocalSGD(", "CELGC("))]
    assert len(strategies) >= 4
    for strategy in strategies:
        parse.strategy(strategy)


def test_the_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"flockstep {flockstep.__version__} (torch ")


def test_an_unknown_command_is_refused():
    result = CliRunner().invoke(app, ["demmo"])
    assert result.exit_code == 2
    assert "demmo" in result.stderr


@pytest.mark.cases(test=1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [[str(Path(sys.executable).with_name("flockstep"))], [sys.executable, "-m", "flockstep"]]
)
def test_from_a_shell(command, tmp_path):
    arguments = ["simulate", "LocalSGD(period=2)", "--nodes", "2", "--steps", "4"]
    told = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    picture = Path("flockstep-out") / "simulate.png"
    assert f"Picture: {picture}" in told.stdout
    assert (tmp_path / picture).exists()


@pytest.mark.parametrize("name", commands._LINES)
def test_the_line_of_a_command_is_the_first_of_its_help(name):
    told = commands.command(name)
    assert told.help.splitlines()[0] == commands._LINES[name]
    assert told.name == name


def test_every_file_of_a_command_is_listed():
    folder = Path(commands.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "\nHELP = " in path.read_text()}
    assert files == set(commands._LINES)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["demmo"]])
def test_help_and_versions_import_no_torch(arguments):
    # Seconds, for somebody who wants to look something up.
    script = "import sys\nfrom flockstep.cli import app\ntry:\n    app()\nfinally:\n    print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120)
    assert told.stdout.splitlines()[-1] == "False", told.stderr


@pytest.mark.slow
def test_everything_public_is_imported_when_it_is_asked_for():
    script = (
        "import sys, flockstep as fs\nprint('torch' in sys.modules)\nfs.join\nprint('torch._dynamo' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert told.stdout.split() == ["False", "False"], told.stderr
