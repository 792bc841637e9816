"""``flockstep run --keep-going`` and ``--join``: nodes that stand by themselves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flockstep.backends.real.security import keys
from flockstep.cli import app
from flockstep.cli.support import supervise

pytestmark = pytest.mark.slow
FLOCKSTEP = str(Path(sys.executable).with_name("flockstep"))
NAMES = ("RANK", "WORLD_SIZE", "FLOCKSTEP_JOIN", "FLOCKSTEP_TIMEOUT", "FLOCKSTEP_PORT", "FLOCKSTEP_INSECURE")

TELL = f"""
import json, os, sys
told = {{name: os.environ.get(name) for name in {NAMES!r}}}
os.write(1, (json.dumps(told) + chr(10)).encode())  # in one piece: nodes share the pipe
for line in sys.stdin:
    pass
"""

# Dies at once the first time, if it is node 1.
FRAIL = """
import os, pathlib, signal
path = pathlib.Path(f"came-{os.environ['RANK']}")
path.write_text(path.read_text() + "x" if path.exists() else "x")
if os.environ["RANK"] == "1" and path.read_text() == "x":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def invoke(*arguments):
    result = CliRunner().invoke(app, ["run", *arguments], env={"COLUMNS": "100", "TERM": "dumb"})
    return result.exit_code, " ".join(result.output.split())


def run(folder, script, *options, **environment):
    (folder / "script.py").write_text(script)
    return subprocess.run(
        [FLOCKSTEP, "run", *options, "script.py"],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def told(done):
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda told: told["RANK"] or "")


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_nodes_know_who_they_are(tmp_path, count):
    done = run(tmp_path, TELL, "-n", str(count), "--keep-going", "--port", "29600", "--timeout", "5 s", "--insecure")
    assert done.returncode == 0, done.stderr
    assert [node["RANK"] for node in told(done)] == [str(rank) for rank in range(count)]
    assert {node["WORLD_SIZE"] for node in told(done)} == {str(count)}
    assert {(n["FLOCKSTEP_TIMEOUT"], n["FLOCKSTEP_PORT"], n["FLOCKSTEP_INSECURE"]) for n in told(done)} == {
        ("5 s", "29600", "1")
    }


def test_one_that_dies_is_named_and_ends_nothing(tmp_path):
    done = run(tmp_path, FRAIL, "-n", "3", "--keep-going")
    assert done.returncode == 0
    assert "Node 1 " in done.stderr
    assert "was killed by SIGKILL; the others go on" in done.stderr
    assert [(tmp_path / f"came-{rank}").read_text() for rank in range(3)] == ["x", "x", "x"]


def test_one_that_dies_is_started_again_alone(tmp_path):
    done = run(tmp_path, FRAIL, "-n", "3", "--keep-going", "--max-restarts", "2")
    assert done.returncode == 0
    assert "it is started again" in done.stderr
    assert [(tmp_path / f"came-{rank}").read_text() for rank in range(3)] == ["x", "xx", "x"]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import sys; sys.exit(3 if __import__('os').environ['RANK'] == '1' else 0)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + 9),
    ],
)
@pytest.mark.cases(test=1)
def test_the_exit_code_tells_of_a_failure_and_of_the_death_of_all(tmp_path, script, code):
    assert run(tmp_path, script, "-n", "2", "--keep-going").returncode == code


def test_one_that_joins_is_told_whom(tmp_path):
    done = run(tmp_path, TELL, "--join", "127.0.0.1:1,127.0.0.1:2")
    assert [(node["FLOCKSTEP_JOIN"], node["RANK"]) for node in told(done)] == [("127.0.0.1:1,127.0.0.1:2", None)]
    done = run(tmp_path, TELL, "--join", "127.0.0.1:1", "-n", "2", "--rank", "7")
    assert [node["RANK"] for node in told(done)] == ["7", "8"]


@pytest.mark.thorough
def test_several_that_join_need_no_numbers_but_keys_of_their_own(tmp_path):
    keys.create(tmp_path / "keys", 2)
    done = run(tmp_path, TELL, "--join", "127.0.0.1:1", "-n", "2", "--keys", "keys")
    assert [node["RANK"] for node in told(done)] == [None, None]
    done = run(tmp_path, TELL, "--join", "127.0.0.1:1", "-n", "3", "--keys", "keys")
    assert done.returncode == 2
    assert "3 nodes cannot join with the keys in" in done.stderr
    assert "which are of nodes 0, 1" in done.stderr


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.cases(test=1)
def test_a_signal_ends_all_and_leaves_nobody(tmp_path, sign):
    (tmp_path / "script.py").write_text("import os\nos.write(1, b'%d\\n' % os.getpid())\nwhile True: os.read(0, 1)\n")
    with subprocess.Popen(
        [FLOCKSTEP, "run", "-n", "2", "--keep-going", "script.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        nodes = [int(running.stdout.readline()) for _ in range(2)]
        running.send_signal(sign)
        _, errors = running.communicate(timeout=60)
    assert running.returncode in (128 + sign, 130, 143)
    assert "Traceback" not in errors
    for pid in nodes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("which", [1, 2, 3, 4])
def test_nor_does_one_that_comes_while_nodes_are_started(monkeypatch, sign, which):
    """The last of the four is the third node's second process: its first ended badly."""
    started, start = [], supervise._process

    def interrupted(command, environment):
        started.append(start(["-c", "import sys; sys.exit(1)" if len(started) == 2 else command[1]], environment))
        if len(started) == which:
            signal.raise_signal(sign)
        return started[-1]

    monkeypatch.setattr(supervise, "_process", interrupted)
    environments = [{"RANK": str(rank)} for rank in range(3)]
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        supervise.keep_going(["-c", "import time; time.sleep(600)"], environments, restarts=1)
    # All were to be started, so all were, and no longer are.
    assert len(started) == max(3, which)
    assert all(process.poll() is not None for process in started)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rank", "1"), "--rank is for a node that joins"),
        (("--keep-going", "--nnodes", "2"), "needs --node-rank and --rdzv-endpoint"),
        (("--keep-going", "--node-rank", "1"), "are for several machines"),
        (("--keep-going", "--port", "70000"), "--port must be between 1 and 65535, got 70000"),
        (("--keep-going", "--timeout", "soon"), "must be a time such as"),
        (("--keep-going", "--keys", "nowhere"), "--keys must be a folder"),
    ],
)
def test_what_makes_no_sense_is_said_at_once(tmp_path, arguments, words):
    script = tmp_path / "script.py"
    script.write_text("")
    code, output = invoke(*arguments, str(script))
    assert code == 2
    assert words in output
