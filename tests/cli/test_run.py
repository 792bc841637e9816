"""``flockstep run``: torch's elastic launcher behind a plain command."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flockstep.cli import app

FLOCKSTEP = str(Path(sys.executable).with_name("flockstep"))

TELL = """
import json, os, sys
names = ["RANK", "WORLD_SIZE", "OMP_NUM_THREADS"]
told = {"arguments": sys.argv[1:], **{name: os.environ[name] for name in names}}
open(f"told-{os.environ['RANK']}.json", "w").write(json.dumps(told))
sys.exit(int(os.environ.get("CODE", "0")) if os.environ["RANK"] == "0" else 0)
"""

LOOP = """
import torch
import flockstep as fs

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with fs.join(model, optimizer, fs.LocalSGD(period=2)) as node:
    for step in range(5):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        node.log(5.0 - step)
"""

STAY = """
import os, time
os.write(1, f"alive {os.getpid()}\\n".encode())  # in one piece: two nodes share the pipe
time.sleep(600)
"""


def invoke(*arguments):
    result = CliRunner().invoke(app, ["run", *arguments], env={"COLUMNS": "100", "TERM": "dumb"})
    return result.exit_code, " ".join(result.output.split())


def run(folder, *arguments, **environment):
    script = folder / "tell.py"
    script.write_text(TELL)
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.run(
        [FLOCKSTEP, "run", *arguments],
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def told(folder, rank):
    return json.loads((folder / f"told-{rank}.json").read_text())


def test_the_help_teaches():
    code, words = invoke("--help")
    assert code == 0
    assert "flockstep run -n 4 train.py --lr 0.1" in words
    assert all(option in words for option in ("--nnodes", "--node-rank", "--rdzv-endpoint", "--max-restarts"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian.py"], "there is no script 'trian.py' in"),
        (["-n", "0", "train.py"], "-n must be at least 1, got 0"),
        (["--max-restarts", "-1", "train.py"], "--max-restarts must be at least 0, got -1"),
        (["--nnodes", "2", "train.py"], "--rdzv-endpoint must be HOST:PORT of the first of 2 machines, got None"),
        (["--nnodes", "2", "--rdzv-endpoint", "a", "train.py"], "must be HOST:PORT of the first of 2 machines"),
        (
            ["--islands", "2", "train.py"],
            "--islands must be how many islands of how many processes, such as '2x8', got '2'",
        ),
        (["--islands", "2x2", "-n", "3", "train.py"], "--islands 2x2 are 4 processes, not 1 machines with -n 3"),
        (["--islands", "1x3", "--nnodes", "2", "train.py"], "--islands 1x3 are 3 processes, not 2 machines"),
        (["--islands", "2x2", "--elastic", "train.py"], "--islands end together"),
        (["--rdzv-endpoint", "a:1", "train.py"], "are for several machines; give --nnodes as well"),
        (["--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "a:1", "train.py"], "between 0 and 1, got 2"),
        (
            ["--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "a:1", "--max-restarts", "1", "train.py"],
            "leave --node-rank away",
        ),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(arguments, words):
    code, said = invoke(*arguments)
    assert code == 2
    assert words in said


@pytest.mark.slow
def test_arguments_after_the_script_are_its_own(tmp_path):
    own = ["--help", "-n", "3", "--", "${local_rank}", "$$", "", "--nnodes=2", "two words"]
    done = run(tmp_path, "-n", "2", "tell.py", *own)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for rank in range(2):
        threads = str(max(1, cores // 2))
        expected = {"arguments": own, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": threads}
        assert told(tmp_path, rank) == expected


@pytest.mark.slow
def test_the_losses_of_a_plain_loop_are_shown(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    done = run(tmp_path, "-n", "2", "loop.py")
    assert done.returncode == 0, done.stderr
    shown = [line.rpartition(", ")[0] for line in done.stderr.splitlines()]
    assert (shown[0], shown[-1]) == ("node 0: step 1, loss 5", "node 0: step 5, loss 1")


@pytest.mark.slow
def test_the_exit_code_is_the_scripts_and_threads_given_are_kept(tmp_path):
    done = run(tmp_path, "-n", "2", "tell.py", CODE="7", OMP_NUM_THREADS="3")
    assert done.returncode == 7
    assert "Node 0 (process " in done.stderr
    assert ") ended with exit code 7; the others were stopped." in done.stderr
    assert "Traceback" not in done.stderr
    assert told(tmp_path, 0)["OMP_NUM_THREADS"] == "3"


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("ranks", [(None, None), (0, 1)], ids=["dealt", "fixed"])
@pytest.mark.thorough
def test_two_launchers_are_one_run(tmp_path, ranks):
    (tmp_path / "tell.py").write_text(TELL)
    endpoint = f"127.0.0.1:{free_port()}"
    launchers = []
    for rank in ranks:
        fixed = [] if rank is None else ["--node-rank", str(rank)]
        arguments = ["-n", "1", "--nnodes", "2", "--rdzv-endpoint", endpoint, *fixed, "tell.py"]
        launchers.append(subprocess.Popen([FLOCKSTEP, "run", *arguments], cwd=tmp_path))
    assert [launcher.wait(timeout=300) for launcher in launchers] == [0, 0]
    assert [told(tmp_path, rank)["WORLD_SIZE"] for rank in range(2)] == ["2", "2"]


@pytest.fixture
def staying(tmp_path):
    """A launcher and the two processes it started, all of which stay until they are told."""
    (tmp_path / "stay.py").write_text(STAY)
    launcher = subprocess.Popen(
        [FLOCKSTEP, "run", "-n", "2", "stay.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield launcher, [int(launcher.stdout.readline().split()[1]) for _ in range(2)]
    finally:
        launcher.terminate()
        launcher.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "Stopped by Ctrl-C."), (signal.SIGTERM, 143, "Stopped by SIGTERM.")],
)
@pytest.mark.cases(test=1)
def test_a_signal_leaves_nobody_behind(staying, number, code, words):
    launcher, pids = staying
    # As a terminal does it, to the group of the launcher; its children have groups of their own.
    os.killpg(launcher.pid, number)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == code
    assert errors.strip().splitlines()[-1] == words
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.slow
def test_when_a_node_is_killed_the_others_are_stopped(staying):
    launcher, pids = staying
    os.kill(pids[0], signal.SIGKILL)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signal.SIGKILL
    assert f"(process {pids[0]}) was killed by SIGKILL" in errors
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_alive(pid) for pid in pids)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
