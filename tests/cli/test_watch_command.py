"""``flockstep watch``, and ``flockstep run`` with onlookers."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import typer
import warm
from typer.testing import CliRunner

from flockstep.cli import app as flockstep
from flockstep.cli import watch
from flockstep.cli.support import watch_session
from flockstep.live import open_journal

app = typer.Typer()
app.command(help=watch.HELP)(watch.watch)

TELL = "import os; open('told', 'w').write(os.environ.get('FLOCKSTEP_JOURNAL', 'no journal'))\n"


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100", "TERM": "dumb"})
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def ended(tmp_path):
    """The journals of a run that is over."""
    for rank in range(3):
        open_journal(tmp_path / "journal", rank=rank, size=3, strategy="Swarm(period=4)").close()
    return tmp_path / "journal"


def test_the_help_teaches():
    code, words = invoke("--help")
    assert code == 0
    assert "flockstep run -n 4 --watch train.py" in words
    assert all(option in words for option in ("--port", "--terminal", "--once", "--open"))


def test_a_folder_that_is_not_there_is_said_with_what_to_do(tmp_path):
    code, words = invoke(tmp_path / "nowhere")
    assert code == 2
    assert "there is no folder" in words
    assert "flockstep run --journal" in words


def test_an_empty_folder_waits_for_a_run(tmp_path):
    code, words = invoke("--once", tmp_path)
    assert code == 0
    assert "Waiting for a run" in words


@pytest.mark.parametrize("how", ["--once", "--terminal"])
def test_of_a_run_that_is_over_its_end_is_shown(ended, how):
    code, words = invoke(how, ended)
    assert code == 0
    assert "Swarm(period=4), ended after" in words
    assert words.count(" done ") >= 3


def test_a_port_that_is_taken_is_said_in_one_sentence(ended):
    from flockstep.live.server import Server

    with Server(ended) as server:
        port = server.address.rstrip("/").rpartition(":")[2]
        code, words = invoke("--port", port, ended)
    assert code == 1
    assert "already in use" in words


SERVE = """
import sys, typer
from flockstep.cli import watch
app = typer.Typer()
app.command()(watch.watch)
app()
"""


@pytest.mark.slow
def test_it_serves_until_ctrl_c_and_leaves_without_complaint(ended):
    watcher = warm.Popen(["-c", SERVE, ended], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        line = watcher.stdout.readline()
        address = line.split()[-1]
        with urllib.request.urlopen(f"{address}state.json", timeout=30) as reply:
            assert json.load(reply)["ended"]
        watcher.send_signal(signal.SIGINT)
        _, errors = watcher.communicate(timeout=60)
    finally:
        watcher.kill()
        watcher.communicate()
    assert watcher.returncode == 0
    assert errors == "No longer watching.\n"


def test_a_run_that_nobody_watches_has_no_journal(monkeypatch):
    monkeypatch.delenv("FLOCKSTEP_JOURNAL", raising=False)
    with watch_session.watching(False, None, fresh=True):
        assert "FLOCKSTEP_JOURNAL" not in os.environ


def test_a_journal_is_kept_where_one_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with watch_session.watching(False, tmp_path / "a" / "b", fresh=True):
        assert os.environ["FLOCKSTEP_JOURNAL"] == str(tmp_path / "a" / "b")
    assert "FLOCKSTEP_JOURNAL" not in os.environ
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_from_the_environment_is_the_one_that_is_watched(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("FLOCKSTEP_JOURNAL", str(tmp_path / "named"))
    with watch_session.watching(True, None, fresh=True):
        assert os.environ["FLOCKSTEP_JOURNAL"] == str(tmp_path / "named")
        assert f"its journal stays in {tmp_path / 'named'}" in capfd.readouterr().err
    assert os.environ["FLOCKSTEP_JOURNAL"] == str(tmp_path / "named")


def test_the_page_is_there_as_long_as_the_run(capfd, monkeypatch):
    monkeypatch.delenv("FLOCKSTEP_JOURNAL", raising=False)
    with watch_session.watching(True, None, fresh=True):
        folder = os.environ["FLOCKSTEP_JOURNAL"]
        address = capfd.readouterr().err.split()[4]
        with urllib.request.urlopen(address, timeout=30) as reply:
            assert b"<title>flockstep watch</title>" in reply.read()
    assert not Path(folder).exists()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=30)


def test_an_earlier_run_is_not_mixed_with_a_new_one(ended, monkeypatch):
    monkeypatch.chdir(ended.parent)
    (ended.parent / "train.py").touch()
    result = CliRunner().invoke(flockstep, ["run", "--journal", "journal", "train.py"])
    assert result.exit_code == 2
    assert "holds the journals of an earlier run; name another folder" in " ".join(result.output.split())
    with watch_session.watching(False, ended, fresh=False):
        pass  # one that joins, or another machine's nodes, come to the folder there is


def test_a_journal_in_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ValueError, match="--journal must be a folder"),
        watch_session.watching(False, tmp_path / "file", fresh=True),
    ):
        pass


@pytest.mark.slow
def test_nodes_learn_where_their_journals_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tell.py").write_text(TELL)
    result = CliRunner().invoke(flockstep, ["run", "-n", "1", "--keep-going", "--journal", "journal", "tell.py"])
    assert result.exit_code == 0
    assert (tmp_path / "told").read_text() == str(tmp_path / "journal")


STAY = """
import os, time
os.write(1, (os.environ["FLOCKSTEP_JOURNAL"] + "\\n").encode())
time.sleep(600)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_run_the_page_and_the_journal(tmp_path):
    (tmp_path / "stay.py").write_text(STAY)
    launcher = subprocess.Popen(
        [str(Path(sys.executable).with_name("flockstep")), "run", "-n", "1", "--keep-going", "--watch", "stay.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "FLOCKSTEP_JOURNAL"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        folder = Path(launcher.stdout.readline().strip())
        assert folder.is_dir()
        os.killpg(launcher.pid, signal.SIGINT)
        _, errors = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
        launcher.communicate()
    assert launcher.returncode == 130
    first, *rest = errors.strip().splitlines()
    assert first.startswith("Watch this run at http://127.0.0.1:")
    assert rest == ["Stopped by Ctrl-C."]
    assert not folder.exists()
