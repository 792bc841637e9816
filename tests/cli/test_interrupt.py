"""Ctrl-C, as a terminal sends it: to the whole group of processes at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sessions import gone, session

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")

FLOCKSTEP = str(Path(sys.executable).with_name("flockstep"))


@pytest.fixture
def started(tmp_path):
    running = []

    def start(*arguments):
        command = [FLOCKSTEP, *arguments, "--out", str(tmp_path)]
        # A session of its own: its number marks every process that descends from this one.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if session(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_until(process, words):
    """What it wrote up to the first line with these words."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"it ended without saying {words!r}: {lines}")


def interrupt(process):
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert gone(process)
    assert process.returncode == 130
    assert out == ""
    return err


@pytest.mark.thorough
def test_a_simulation_stops_with_one_line(started):
    process = started("simulate", "LocalSGD(period=4)", "--steps", "100000000", "--workload", "quadratics(dim=4)")
    read_until(process, "step 0 of")
    assert interrupt(process) == "Stopped by Ctrl-C.\n"


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["This takes", "2 real processes, DataParallel: step 0 of"])
@pytest.mark.cases(test=1)
def test_the_demo_leaves_no_process_behind(started, moment):
    process = started("demo")
    read_until(process, moment)
    said = interrupt(process)
    assert said.strip().splitlines()[-1] == "Stopped by Ctrl-C."
    assert "Traceback" not in said
