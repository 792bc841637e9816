"""The slow-link laboratory: its limits are real, and nothing of it is left, whatever happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm

from benchmarks.slowlink import __main__ as slowlink
from benchmarks.slowlink.crew import run_everywhere
from flockstep.compare.lab import commands, names
from flockstep.compare.lab.commands import Missing
from flockstep.compare.lab.lab import Lab, demolish, namespaces

ROOT = Path(__file__).parents[2]
PATIENCE = 60
HOLD_A_LAB = """
import sys, time
from flockstep.compare.lab.lab import Lab
with Lab() as lab:
    child = lab.nodes[0].start([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def allowed():
    """Skips, with the reason, where this machine cannot build a laboratory."""
    try:
        with Lab():
            pass
    except Missing as reason:
        pytest.skip(f"no slow links here: {reason}")


def ours(pid):
    """The namespaces of a process's laboratories."""
    return [name for name in namespaces() if name.startswith(f"flockstep-lab-{pid}-")]


def is_running(pid):
    """Whether a process is there, and not merely unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(true):
    """Whether it becomes so in reasonable time."""
    deadline = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()


@pytest.fixture
def holder(allowed):
    """Another process that holds a laboratory, with a process in it; both are gone afterwards."""
    process = subprocess.Popen([sys.executable, "-c", HOLD_A_LAB], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    inhabitant = int(process.stdout.readline())
    yield process, inhabitant
    process.kill()
    process.wait()
    process.stdout.close()
    demolish(iter(ours(process.pid)))


@pytest.mark.slow
def test_the_limit_is_a_limit(allowed, monkeypatch):
    monkeypatch.setattr(sys, "executable", warm.stub())
    with Lab(nodes=2, rate="100 Mbit/s") as lab:
        nbytes = int(lab.bytes_per_second)
        found = run_everywhere(lab, "benchmarks.slowlink.probe", "--nbytes", str(nbytes), timeout=PATIENCE)[0]
        assert len(ours(os.getpid())) == 3
    assert 0.7 <= found["bytes_per_second"] / 12.5e6 <= 1.05
    assert 0 < found["latency"] < 1
    assert ours(os.getpid()) == []


@pytest.mark.slow
def test_nothing_is_left_after_an_exception_and_its_processes_are_gone(allowed):
    with pytest.raises(ZeroDivisionError), Lab() as lab:
        child = lab.nodes[1].start([sys.executable, "-c", "import time; time.sleep(600)"])
        raise ZeroDivisionError
    assert ours(os.getpid()) == []
    assert child.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_failing_node_ends_the_others_and_is_named(allowed, monkeypatch):
    monkeypatch.setattr(sys, "executable", warm.stub())
    with Lab() as lab, pytest.raises(RuntimeError, match="no_such_module failed on node"):
        run_everywhere(lab, "benchmarks.no_such_module", timeout=PATIENCE)
    assert ours(os.getpid()) == []


@pytest.mark.slow
def test_names_are_found_in_a_file_and_unknown_ones_fail_at_once(allowed):
    with Lab() as lab:
        look = "import socket; print(socket.gethostbyaddr('10.77.0.2')[0], flush=True)"
        said = lab.nodes[0].start([sys.executable, "-c", look], stdout=subprocess.PIPE)
        assert said.communicate(timeout=PATIENCE)[0].strip() == b"node1"


@pytest.mark.cases(test=1)
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_cleans_up(allowed, how):
    # Through a real run of the command: it must be interruptible while its nodes are at work.
    process = warm.Popen(
        ["-m", "benchmarks.slowlink", "--quick"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        python=warm.stub(),
    )
    try:
        assert "warming up" in process.stderr.readline()
        assert ours(process.pid)
        process.send_signal(how)
        assert process.wait(PATIENCE) != 0
        assert ours(process.pid) == []
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        demolish(iter(ours(process.pid)))


@pytest.mark.slow
def test_what_a_killed_run_leaves_the_next_one_removes(holder):
    process, inhabitant = holder
    assert len(ours(process.pid)) == 3
    process.kill()
    process.wait()
    assert eventually(lambda: not is_running(inhabitant))
    assert len(ours(process.pid)) == 3
    with Lab():
        assert ours(process.pid) == []
    assert ours(os.getpid()) == []


@pytest.mark.slow
def test_a_living_run_is_left_alone(holder):
    process, inhabitant = holder
    with Lab():
        pass
    assert len(ours(process.pid)) == 3
    assert is_running(inhabitant)


def test_names_tell_living_runs_from_dead_ones():
    lab = names.new_lab()
    assert names.belongs(f"{lab}-node0", lab)
    assert not names.belongs(f"{names.new_lab()}-node0", lab)
    assert not names.is_stale(f"{lab}-node0")
    # Another process that got this one's number later.
    assert names.is_stale(f"flockstep-lab-{os.getpid()}-1-0-node0")
    assert names.is_stale("flockstep-lab-4194305-1-0-switch")
    assert not names.is_stale("somebody-elses")
    assert not names.is_stale("flockstep-lab-mine")


@pytest.mark.parametrize(
    ("lacking", "told"),
    [("ip", "command ip is missing"), ("tc", "command tc is missing"), ("root", "need root")],
)
def test_it_says_what_is_missing_and_leaves_well(lacking, told, monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None if name == lacking else name)
    monkeypatch.setattr("os.geteuid", lambda: 1000 if lacking == "root" else 0)
    monkeypatch.setattr(sys, "argv", ["slowlink"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        slowlink.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    *sentence, last = capsys.readouterr().out.splitlines()
    assert len(sentence) == 1
    assert told in json.loads(last)["skipped"]
    assert json.loads(last)["met"] == {}


def test_a_refused_command_is_told_in_terms_of_its_purpose():
    with pytest.raises(Missing, match="does not allow token buckets: false"):
        commands.run("false", purpose="token buckets")


def test_help_says_how_to_run_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["slowlink", "--help"])
    with pytest.raises(SystemExit) as left:
        slowlink.main()
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert "python -m benchmarks.slowlink" in told
    assert all(option in told for option in ("--rate", "--nodes", "--quick"))


@pytest.mark.parametrize("wrong", [{"nodes": 1}, {"rate": "100"}])
def test_a_laboratory_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=r"Lab\."):
        Lab(**wrong)
