"""Every benchmark and experiment: its help reads, and its quick form runs to the end and says what it met.

A new one is found by itself: a file of ``benchmarks/`` or ``experiments/``, or a folder's ``__main__.py``, that has a
``main``; any other file of a folder, if its ``main`` takes the arguments that all of them have.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm

ROOT = Path(__file__).parents[2]
LONGEST = 600
"""Seconds: ten times what ``--quick`` promises, for a machine with other things to do."""

COLD = ("benchmarks.simulator", "benchmarks.lda")
"""These start as a person starts them; the others are forked from a process that has imported torch."""

LONG = {
    "benchmarks.a2c",
    "benchmarks.a2c.control",
    "benchmarks.a2c.nodes",
    "benchmarks.a2c.pong",
    "benchmarks.apart",
    "benchmarks.defaults",
    "benchmarks.elastic",
    "benchmarks.elastic_faults",
    "benchmarks.faults",
    "benchmarks.lda",
    "benchmarks.lda.defaults",
    "benchmarks.lda.nodes",
    "benchmarks.lockfree",
    "benchmarks.mailbox",
    "benchmarks.overhead",
    "benchmarks.race",
    "benchmarks.schedules",
    "benchmarks.simulator",
    "benchmarks.slowlink",
    "experiments.celgc_speedup",
    "experiments.celgc_wikitext2",
    "experiments.dpsgd_churn",
    "experiments.dpsgd_speedup",
    "experiments.episode_quartics",
    "experiments.hpsgd_cifar10",
    "experiments.hsa2c_atari",
    "experiments.sclip_language",
    "experiments.sclip_logistic",
    "experiments.sclip_quadratic",
    "experiments.sixteenth",
    "experiments.swarm_churn",
    "experiments.swarm_cifar10",
}
"""Five seconds and more of two cores each."""

KILLING = ("benchmarks.faults",)
"""These kill processes that they have started, and count on their being gone. What others start is forked, too."""


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


def skip_without(package):
    """Peers and extras need not be installed; what is ours must be there."""
    if package.partition(".")[0] not in ("benchmarks", "experiments", "flockstep"):
        pytest.skip(f"needs pip install {package}")


def test_some_were_found():
    assert set(COMMANDS) >= LONG
    assert {"benchmarks.simulator", "experiments.celgc_speedup", "experiments.episode_quartics"} <= set(COMMANDS)


# Parts of torch that are imported by need warn of their own old age.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_how_to_run_it(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    try:
        module = importlib.import_module(COMMANDS[command])
    except ModuleNotFoundError as missing:
        skip_without(missing.name)
        raise
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert f"python -m {command}" in told
    assert "--quick" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.thorough) if name in LONG else name for name in COMMANDS]
)
def test_quick_runs_to_the_end(command, tmp_path):
    arguments = ["-m", command, "--quick", "--out", str(tmp_path)]
    if command in COLD:
        call = [sys.executable, *arguments]
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    else:
        python = sys.executable if command in KILLING else warm.stub()
        done = warm.run(arguments, cwd=ROOT, timeout=LONGEST, python=python)
    if done.returncode:
        if not torch.cuda.is_available() and "needs a GPU" in done.stderr:
            pytest.skip("needs a CUDA GPU")
        # Also where a node of it, or a process, was the one to look for them.
        if missing := re.search(r"no data folder '.+?' in it", done.stderr):
            pytest.skip(missing[0])
        if missing := re.search(r"^ModuleNotFoundError: No module named '(.+)'$", done.stderr, re.M):
            skip_without(missing[1])
    assert done.returncode == 0, done.stderr
    met = json.loads(done.stdout.splitlines()[-1])["met"]
    # Whether a bar is met depends on the machine, and quick runs are short: that it is told does not.
    assert met
    assert all(isinstance(bar, str) and isinstance(reached, bool) for bar, reached in met.items())
    assert any(file.suffix == ".csv" for file in tmp_path.iterdir())
