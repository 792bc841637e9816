"""A comparison that was ended halfway goes on where it stopped, and its report is that of one that was not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sessions import gone, session

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc"),
]

FLOCKSTEP = str(Path(sys.executable).with_name("flockstep"))
COMMAND = ["compare", "DataParallel", "LocalSGD(period=4)", "Swarm(period=2)"]
SIZE = ["--workload", "shakespeare(batch=2, hidden=16, length=8)", "--nodes", "4", "--steps", "60", "--seeds", "2"]
REPORT = ("report.html", "report.png", "rows.csv", "table.csv")


def start(out):
    command = [FLOCKSTEP, *COMMAND, *SIZE, "--straggler", "1:4x", "--out", str(out)]
    # A session of its own: its number marks every process that descends from this one.
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole")
    process = start(out)
    said, complained = process.communicate(timeout=300)
    assert process.returncode == 0, complained
    assert f"Report:  {out / 'report.html'}" in said
    return out


@pytest.mark.cases(test=1)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.thorough
def test_ended_halfway_and_begun_again_it_ends_with_the_same_report(whole, tmp_path, how):
    process = start(tmp_path)
    try:
        # Two of six are done, and others are under way.
        for line in process.stderr:
            if "run 2 of 6" in line:
                break
        if how is signal.SIGINT:
            os.killpg(process.pid, how)
        else:
            process.kill()
        complained = process.communicate(timeout=60)[1]
        assert gone(process)
    finally:
        if session(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert f"of 6 runs are kept in {tmp_path}; the same command goes on from there." in complained
        assert complained.endswith("Stopped by Ctrl-C.\n")
        assert "Traceback" not in complained
    assert not (tmp_path / "report.html").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir() if is_done(path)}
    assert 2 <= len(kept) < 6
    again = start(tmp_path)
    complained = again.communicate(timeout=300)[1]
    assert again.returncode == 0, complained
    assert f"{len(kept)} of 6 runs are in {tmp_path} already." in complained
    assert all((tmp_path / "runs" / name).stat().st_mtime_ns == when for name, when in kept.items())
    for name in REPORT:
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name


def is_done(path):
    lines = path.read_text().splitlines()
    try:
        return bool(lines) and "done" in json.loads(lines[-1])
    except ValueError:
        return False
