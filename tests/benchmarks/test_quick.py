"""Every benchmark and experiment: its help reads, and its quick form runs to the end and says what it met.

A new one is found by itself: a file of ``benchmarks/`` or ``experiments/``, or a folder's ``__main__.py``, that has a
``main``; any other file of a folder, if its ``main`` takes the arguments that all of them have.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 600
"""Seconds: ten times what ``--quick`` promises, for a machine with other things to do."""


def commands():
    """The names one gives to ``python -m``, by the module that holds their ``main``."""
    texts = {
        file: file.read_text() for folder in ("benchmarks", "experiments") for file in (ROOT / folder).rglob("*.py")
    }
    files = [
        file
        for file, text in texts.items()
        if "\ndef main(" in text
        and (len(file.relative_to(ROOT).parts) == 2 or file.name == "__main__.py" or " arguments(NAME" in text)
    ]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return {module.removesuffix(".__main__"): module for module in sorted(modules)}


COMMANDS = commands()


def test_some_were_found():
    assert {"benchmarks.simulator", "experiments.celgc_speedup", "experiments.episode_quartics"} <= set(COMMANDS)


# Parts of torch that are imported by need warn of their own old age.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_how_to_run_it(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    with pytest.raises(SystemExit) as left:
        importlib.import_module(COMMANDS[command]).main()
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert f"python -m {command}" in told
    assert "--quick" in told


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_quick_runs_to_the_end(command, tmp_path):
    call = [sys.executable, "-m", command, "--quick", "--out", str(tmp_path)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    if done.returncode and "FLOCKSTEP_DATA" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    met = json.loads(done.stdout.splitlines()[-1])["met"]
    # Whether a bar is met depends on the machine, and quick runs are short: that it is told does not.
    assert met
    assert all(isinstance(bar, str) and isinstance(reached, bool) for bar, reached in met.items())
    assert any(file.suffix == ".csv" for file in tmp_path.iterdir())
