"""Nodes that stand by themselves: each is a process of its own, and the death of one ends nothing but itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flockstep.backends.real.launch.child_processes import felt_later
from flockstep.cli.support import consoles

# How often the processes are looked at, and what one may take to end by itself when told to.
_GLANCE, _GRACE = 0.1, 10.0
# Felt while a node is being started, these would leave one that nobody knows of, and nobody ends.
_ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclass
class _Started:
    """One node: its environment, and its process of the moment."""

    name: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]
    restarts: int = 0
    code: int | None = field(default=None)


def keep_going(command: Sequence[str], environments: Sequence[Mapping[str, str]], *, restarts: int) -> int:
    """Run a command once per environment until all have ended; 0 if one ended well and none failed by itself.

    A node that dies is started again, up to ``restarts`` times; the others go on in any case.
    """
    nodes: list[_Started] = []
    with _ended_by_signals():
        try:
            with felt_later(*_ENDING):
                nodes.extend(_start(command, environment) for environment in environments)
            while any(node.code is None for node in nodes):
                for node in nodes:
                    if node.code is None:
                        _look_at(node, command, restarts)
                time.sleep(_GLANCE)
        finally:
            _end(nodes)
    codes = [node.code or 0 for node in nodes]
    failed = [code for code in codes if code > 0]
    if failed or 0 in codes:
        return failed[0] if failed else 0
    return 128 - codes[0]


@contextmanager
def founders(processes: int, machines: int, machine: int, endpoint: str | None) -> Iterator[list[dict[str, str]]]:
    """The environments of nodes that begin a run together."""
    size = {"WORLD_SIZE": str(processes * machines), "LOCAL_WORLD_SIZE": str(processes)}
    first = machine * processes
    numbers = [{"RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(processes)]
    if machines > 1 and endpoint is not None:
        host, _, port = endpoint.rpartition(":")
        yield [{**size, **number, "MASTER_ADDR": host, "MASTER_PORT": port} for number in numbers]
        return
    with tempfile.TemporaryDirectory(prefix="flockstep-") as folder:
        store = {"FLOCKSTEP_STORE": str(Path(folder) / "store")}
        yield [{**size, **number, **store} for number in numbers]


def newcomers(processes: int, contacts: str, rank: int | None) -> list[dict[str, str]]:
    """The environments of nodes that come to a run that is under way."""
    if rank is None:
        # Each asks the run for a number; they need others only where they listen.
        return [{"FLOCKSTEP_JOIN": contacts, "LOCAL_RANK": str(local)} for local in range(processes)]
    return [
        {"FLOCKSTEP_JOIN": contacts, "RANK": str(rank + local), "LOCAL_RANK": str(local)} for local in range(processes)
    ]


def _start(command: Sequence[str], environment: Mapping[str, str]) -> _Started:
    name = f"Node {environment['RANK']}" if "RANK" in environment else "The node that joined"
    return _Started(name, environment, _process(command, environment))


def _process(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the terminal is for this process, which ends the nodes in order.
    return subprocess.Popen([sys.executable, "-u", *command], env={**os.environ, **environment}, start_new_session=True)


def _look_at(node: _Started, command: Sequence[str], restarts: int) -> None:
    code = node.process.poll()
    if code is None:
        return
    if code == 0 or node.restarts == restarts:
        node.code = code
        if code:
            consoles.complain(f"{node.name} (process {node.process.pid}) {how(code)}; the others go on.")
        return
    node.restarts += 1
    consoles.complain(f"{node.name} (process {node.process.pid}) {how(code)}; it is started again.")
    with felt_later(*_ENDING):
        node.process = _process(command, node.environment)


def how(code: int) -> str:
    """How a process ended, in words."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _end(nodes: Sequence[_Started]) -> None:
    for node in nodes:
        if node.process.poll() is None:
            node.process.terminate()
    deadline = time.monotonic() + _GRACE
    for node in nodes:
        try:
            node.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the nodes as Ctrl-C does."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
