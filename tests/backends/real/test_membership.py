"""Nodes as scripts of their own, under kill -9, SIGSTOP, restarts and latecomers."""

import json
import os
import queue
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
import warm

from flockstep.backends.real.security.keys import create, home_of

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("flock.py")
# Before whatever is installed, the library that these tests were started with.
PATHS = os.pathsep.join([str(SCRIPT.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
PATIENCE = 60


class Script:
    """One node: a process, and what it says."""

    def __init__(self, environment, errors):
        self._errors = errors.open("w+")
        self.process = warm.Popen(
            [SCRIPT],
            env=os.environ | {"PYTHONPATH": PATHS, "FLOCKSTEP_TIMEOUT": "6 s"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._lines = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.last = {}

    def _listen(self):
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def until(self, true_of):
        """The first line from now on of which something is true."""
        while True:
            line = self._lines.get(timeout=PATIENCE)
            if line is None:
                self._errors.seek(0)
                raise AssertionError(f"node ended: {self._errors.read()[-3000:]}")
            self.last = line
            if true_of(line):
                return line

    def further(self, steps):
        """Wait until it has taken so many more steps."""
        self.until(lambda line: True)
        aim = self.last["step"] + steps
        return self.until(lambda line: line["step"] >= aim)

    def end(self):
        self.process.stdin.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for file in (self._errors, self.process.stdin, self.process.stdout):
            file.close()

    def ended(self):
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            self.last = line
        assert self.process.wait(PATIENCE) == 0
        return self.last


@pytest.fixture
def start(tmp_path):
    scripts = []

    def start(**environment):
        scripts.append(Script(environment, tmp_path / f"errors-{len(scripts)}"))
        return scripts[-1]

    yield start
    for script in scripts:
        script.close()


@pytest.fixture
def founders(start, tmp_path):
    def founders(count, **environment):
        size = {"WORLD_SIZE": str(count), "FLOCKSTEP_STORE": str(tmp_path / "store")} | environment
        return [start(RANK=str(rank), **size) for rank in range(count)]

    return founders


def end_all(scripts):
    for script in scripts:
        script.end()
    return [script.ended() for script in scripts]


def end_close_together(nodes):
    """After each has met the others some more: who came last, or was away, has to catch up first."""
    for node in nodes:
        node.further(20)
    first, *others = (last["average"] for last in end_all(nodes))
    return all(abs(a - b) < 0.1 for other in others for a, b in zip(first, other, strict=True))


def test_killing_the_process_that_holds_the_store_ends_nothing(start):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    meeting = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    nodes = [start(RANK=str(rank), **meeting) for rank in range(3)]
    for node in nodes:
        node.until(lambda line: line["step"] >= 5 and len(line["peers"]) == 2)
    nodes[0].process.kill()
    for rank in (1, 2):
        assert nodes[rank].until(lambda line: 0 not in line["peers"])["peers"] == [3 - rank]
    assert end_close_together(nodes[1:])


def test_a_node_that_was_killed_returns_as_a_new_incarnation(founders, start, tmp_path):
    nodes = founders(3)
    for node in nodes:
        node.further(5)
    begin = nodes[2].last["begins"]
    nodes[2].process.kill()
    for node in nodes[:2]:
        node.until(lambda line: 2 not in line["peers"])
    nodes[2] = start(RANK="2", WORLD_SIZE="3", FLOCKSTEP_STORE=str(tmp_path / "store"))
    again = nodes[2].until(lambda line: line["step"] >= 1)
    assert again["begins"] != begin
    for node in nodes[:2]:
        node.until(lambda line: 2 in line["peers"])
    assert end_close_together(nodes)


@pytest.mark.parametrize("how", ["by the store", "late", "with keys"])
def test_a_node_that_is_started_again_with_its_clock_set_back_is_taken_in(founders, start, tmp_path, how):
    keys = {}
    if how == "with keys":
        create(tmp_path / "keys", 2)
        keys = {"FLOCKSTEP_KEYS": str(tmp_path / "keys")}
    nodes = founders(2, **keys)
    for node in nodes:
        node.further(5)
    nodes[1].process.kill()
    nodes[0].until(lambda line: not line["peers"])
    way = {"WORLD_SIZE": "2", "FLOCKSTEP_STORE": str(tmp_path / "store")}
    if how == "late":
        way = {"FLOCKSTEP_JOIN": nodes[0].last["address"]}
    nodes[1] = start(RANK="1", CLOCK_AHEAD="-86400", **way, **keys)
    nodes[1].further(1)
    nodes[0].until(lambda line: line["peers"] == [1])
    assert end_close_together(nodes)
    assert nodes[1].last["counts"]["pulled"] > 0


def test_one_who_comes_late_needs_nobody_but_a_living_node(founders, start):
    nodes = founders(2)
    for node in nodes:
        node.further(5)
    gone = nodes[0].last["address"]
    nodes[0].process.kill()
    late = start(FLOCKSTEP_JOIN=f"{gone},{nodes[1].last['address']}")
    said = late.until(lambda line: line["step"] >= 5)
    assert said["rank"] == 2
    nodes[1].until(lambda line: line["peers"] == [2])
    assert end_close_together([nodes[1], late])


def test_two_who_come_at_once_have_numbers_of_their_own(founders, start):
    nodes = founders(2)
    for node in nodes:
        node.further(5)
    late = [start(FLOCKSTEP_JOIN=nodes[i].last["address"]) for i in range(2)]
    assert {each.until(lambda line: line["step"] >= 5)["rank"] for each in late} == {2, 3}
    for node in nodes:
        node.until(lambda line: {2, 3} <= {*line["peers"]})
    assert end_close_together([*nodes, *late])


def test_with_keys_one_who_comes_late_is_who_its_certificate_says(founders, start, tmp_path):
    create(tmp_path / "keys", 4)
    nodes = founders(2, FLOCKSTEP_KEYS=str(tmp_path / "keys"), FLOCKSTEP_HOST="127.0.0.1")
    for node in nodes:
        node.further(5)
    own = {"FLOCKSTEP_KEYS": str(home_of(tmp_path / "keys", 3)), "FLOCKSTEP_HOST": "127.0.0.1"}
    late = start(FLOCKSTEP_JOIN=nodes[0].last["address"], **own)
    assert late.until(lambda line: line["step"] >= 5)["rank"] == 3
    assert end_close_together([*nodes, late])


def test_one_who_comes_late_turns_to_another_when_the_first_falls_silent(founders, start):
    nodes = founders(3)
    for node in nodes:
        node.further(5)
    contact = nodes[2].last["address"]
    os.kill(nodes[0].process.pid, signal.SIGSTOP)
    late = start(FLOCKSTEP_JOIN=contact, RANK="3")
    assert late.until(lambda line: line["step"] >= 1)["rank"] == 3
    os.kill(nodes[0].process.pid, signal.SIGCONT)
    nodes[0].until(lambda line: 3 in line["peers"])
    late.until(lambda line: 0 in line["peers"])
    assert end_close_together([*nodes, late])


def test_a_node_that_was_stopped_comes_back(founders):
    nodes = founders(3)
    for node in nodes:
        node.further(5)
    os.kill(nodes[1].process.pid, signal.SIGSTOP)
    for rank in (0, 2):
        nodes[rank].until(lambda line: 1 not in line["peers"])
        nodes[rank].further(10)
    os.kill(nodes[1].process.pid, signal.SIGCONT)
    for rank in (0, 2):
        nodes[rank].until(lambda line: 1 in line["peers"])
    assert end_close_together(nodes)
