"""The examples, run as a user runs them: by their command lines."""

import json
import os
import runpy
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
import warm
from safetensors.torch import load_file

from flockstep.workloads.datasets import data_folder

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FLOCK = [str(Path(sys.executable).with_name("flockstep")), "run", "-n", "2"]
TINY = ["--hidden", "16", "--batch", "4", "--length", "16"]


def command(*arguments, launcher):
    name, *rest = arguments
    return [*launcher, str(EXAMPLES / name), *map(str, rest)]


def run(*arguments, launcher=None, nodes=1):
    """What all nodes said. Without a launcher, they are forked with the variables that torchrun sets."""
    # From the root, where data folders are looked for unless FLOCKSTEP_DATA names another.
    if launcher:
        call = command(*arguments, launcher=launcher)
        ended = [subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=300)]
    elif nodes == 1:
        ended = [warm.run(command(*arguments, launcher=()), cwd=ROOT, timeout=300)]
    else:
        ended = warm.flock(nodes, command(*arguments, launcher=()), cwd=ROOT, timeout=300)
    for done in ended:
        assert done.returncode == 0, done.stderr
    return "".join(done.stdout for done in ended)


def weights(folder):
    return load_file(folder / "shakespeare.safetensors")


def assert_same_bits(left, right):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def needs_data(name):
    try:
        data_folder(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def here(monkeypatch, capsys):
    """Run an example in this process: where it ends before it trains, starting another takes nearly all of the time."""

    def ended(name, *arguments):
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *arguments])
        monkeypatch.syspath_prepend(EXAMPLES)
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return left.value.code, capsys.readouterr()

    return ended


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_help_teaches(name, here):
    code, (said, _) = here(name, "--help")
    assert code == 0
    start = "flockstep run --islands" if name == "islands_gpt.py" else "flockstep run -n"
    assert all(word in said for word in (start, "torchrun", "--strategy", "--resume", "--steps", "--out"))


@pytest.mark.thorough
def test_two_optimizers_on_two_nodes(tmp_path):
    tiny = ["--steps", "4", "--batch", "2", "--length", "16", "--width", "16", "--layers", "1", "--out", tmp_path]
    said = run("muon_gpt.py", *tiny, nodes=2)
    assert "on 2 node(s)" in said
    assert (tmp_path / "muon_gpt.safetensors").exists()


@pytest.mark.slow
def test_two_islands_of_two(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOCKSTEP_ISLANDS", "2x2")
    tiny = ["--steps", "4", "--batch", "2", "--length", "16", "--width", "16", "--layers", "1", "--out", tmp_path]
    said = run("islands_gpt.py", *tiny, "--strategy", "LocalSGD(period=2)", nodes=4)
    assert "on 2 island(s) of 2" in said
    assert load_file(tmp_path / "islands_gpt.safetensors")["head.weight"].shape[1] == 16


def test_every_example_has_its_line():
    page = (EXAMPLES / "README.md").read_text()
    assert all(path.name in page for path in EXAMPLES.glob("*.py"))


@pytest.mark.thorough
def test_shakespeare_alone(tmp_path):
    # As a person starts it; the other runs are of processes that are forked.
    said = run(
        "shakespeare.py",
        "--steps",
        4,
        *TINY,
        "--out",
        tmp_path,
        "--losses",
        tmp_path / "losses",
        launcher=[sys.executable],
    )
    assert "node 0 of 1" in said
    assert "validation loss" in said
    assert len(json.loads((tmp_path / "losses-0").read_text())) == 4
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())


def test_a_strategy_that_cannot_be_read_is_told(here):
    code, (_, complaint) = here("shakespeare.py", "--strategy", "CELGC")
    assert code == 2
    assert "--strategy: CELGC needs period" in complaint


@pytest.mark.cases(test=1)
@pytest.mark.parametrize(
    "launcher",
    [FLOCK, [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]],
    ids=["flockstep run", "torchrun"],
)
@pytest.mark.thorough
def test_shakespeare_in_a_flock(tmp_path, launcher):
    said = run("shakespeare.py", "--steps", 10, *TINY, "--out", tmp_path, launcher=launcher)
    assert "node 0 of 2" in said
    assert "node 1 of 2" in said
    assert said.count("validation loss") == 1
    assert weights(tmp_path)


@pytest.mark.slow
def test_data_parallel_is_what_ddp_of_torch_is(tmp_path):
    shape = ["--steps", 100, *TINY, "--seed", 3]
    run(
        "shakespeare.py",
        *[*shape, "--strategy", "DataParallel", "--out", tmp_path / "ours", "--losses", tmp_path / "ours"],
        nodes=2,
    )
    run(
        "shakespeare.py",
        *[*shape, "--ddp", "--out", tmp_path / "theirs", "--losses", tmp_path / "theirs"],
        nodes=2,
    )
    for rank in range(2):
        ours, theirs = (json.loads((tmp_path / f"{who}-{rank}").read_text()) for who in ("ours", "theirs"))
        assert len(ours) == 100
        assert ours == pytest.approx(theirs, rel=1e-4)
        # Not because nothing happened.
        assert sum(ours[-10:]) < 0.9 * sum(ours[:10])


LONG = ["shakespeare.py", "--steps", "203", *TINY]
CELGC = "CELGC(period=8, gamma=1.0)"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The weights of a run that nothing disturbed, by strategy."""

    @cache
    def train(strategy):
        folder = tmp_path_factory.mktemp("whole")
        run(*LONG, "--strategy", strategy, "--out", folder, nodes=2)
        return weights(folder)

    return train


@contextmanager
def killed_in_the_middle(arguments, launcher):
    """A run of two nodes of which the second was killed at a tenth of the way."""
    call = ["-m", "flockstep", *command(*arguments, launcher=launcher[1:])]
    process = warm.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, python=warm.stub())
    try:
        pid = None
        for line in process.stdout:
            if "node 1 of 2 is process" in line:
                pid = int(line.split()[-1])
            if line.startswith("step "):
                break
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def with_checkpoints(folder, strategy):
    return [*LONG, "--strategy", strategy, "--out", folder / "out", "--resume", folder / "saved", "--save-every", 5]


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("strategy", ["DataParallel", CELGC])
@pytest.mark.thorough
def test_killed_and_resumed_is_as_if_never_interrupted(tmp_path, uninterrupted, strategy):
    arguments = with_checkpoints(tmp_path, strategy)
    with killed_in_the_middle(arguments, FLOCK) as process:
        process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGKILL
    assert not (tmp_path / "out").exists()

    run(*arguments, "--losses", tmp_path / "losses", nodes=2)
    assert 0 < len(json.loads((tmp_path / "losses-0").read_text())) < 203
    assert_same_bits(weights(tmp_path / "out"), uninterrupted(strategy))


@pytest.mark.thorough
def test_a_restarted_flock_resumes_by_itself(tmp_path, uninterrupted):
    with killed_in_the_middle(with_checkpoints(tmp_path, CELGC), [*FLOCK, "--max-restarts", "1"]) as process:
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0, said
    assert "node 1 of 2 is process" in said
    assert_same_bits(weights(tmp_path / "out"), uninterrupted(CELGC))


@pytest.mark.parametrize(
    ("name", "data", "small", "says"),
    [
        ("cifar10_resnet.py", "cifar10", ["--batch", 8, "--validate", 50], "test accuracy"),
        ("wikitext2_lstm.py", "wikitext-2", ["--batch", 2, "--width", 8, "--validate", 200], "validation perplexity"),
    ],
)
@pytest.mark.slow
def test_three_steps_on_files(tmp_path, name, data, small, says):
    needs_data(data)
    said = run(name, "--steps", 3, *small, "--out", tmp_path)
    assert says in said
    assert load_file(next(tmp_path.glob("*.safetensors")))
