"""The asking node: it pulls a body from a peer, has misfortune befall that peer in the middle, and looks what happens.

Runs in the first node's namespace; prints one JSON object at its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from benchmarks.faults.mother import RUN
from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.compare.lab.lab import INTERFACE
from flockstep.errors import LostPeer
from flockstep.message import Message

VICTIM, OTHER = 1, 2
KINDS = ("kill -9", "SIGSTOP", "link down")
_PATIENCE = 30.0
_QUESTION = Message(torch.zeros(8, dtype=torch.uint8), "Raw", (8,), torch.uint8)


class Mother:
    """The process that forks the nodes of one namespace."""

    def __init__(self, namespace: str, host: str, timeout: float, count: int) -> None:
        self.namespace = namespace
        words = [sys.executable, "-m", "benchmarks.faults.mother", host, str(timeout), str(count)]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            # So that all its children can be ended at once.
            start_new_session=True,
        )
        self.serving: SimpleQueue[None] = SimpleQueue()
        self._ready: SimpleQueue[tuple[int, str]] = SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def spawn(self, rank: int) -> tuple[int, str]:
        """A new node: its process and its line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"spawn {rank}\n")
        self.process.stdin.flush()
        return self._ready.get(timeout=_PATIENCE)

    def link(self, state: str) -> None:
        """Take the cable out, or put it in."""
        subprocess.run(["ip", "-n", self.namespace, "link", "set", INTERFACE, state], check=True)

    def end(self) -> None:
        """End it and all its children."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *rest = line.split(maxsplit=2)
            if word == "serving":
                self.serving.put(None)
            elif word == "ready":
                self._ready.put((int(rest[0]), rest[1].strip()))


class Driver:
    """One asker, one victim, one other."""

    def __init__(self, namespaces: list[str], hosts: list[str], timeout: float, count: int) -> None:
        warnings.simplefilter("ignore")
        self._timeout = timeout
        self._mothers = [Mother(namespaces[k], hosts[k], timeout, count) for k in (VICTIM, OTHER)]
        self._house = open_endpoint(RUN, 0, 3, Limits(timeout), ListenOn(hosts[0], insecure=True))
        self._box = self._house.box
        self._box.members.learn(self._mothers[1].spawn(OTHER)[1])
        self._victim = self._spawn_victim()

    def _spawn_victim(self) -> int:
        pid, line = self._mothers[0].spawn(VICTIM)
        self._box.members.learn(line)
        return pid

    def cycle(self, kind: str) -> dict[str, Any]:
        """Misfortune in the middle of a transfer; what the asker saw, and whether the peer came back."""
        befall, heal = self._deeds(kind)

        def when_serving() -> None:
            self._mothers[0].serving.get(timeout=_PATIENCE)
            befall()

        deed = threading.Thread(target=when_serving)
        deed.start()
        began, told = time.monotonic(), ""
        try:
            self._box.ask(VICTIM, "long", _QUESTION)
        except LostPeer as error:
            told = str(error)
        seconds = time.monotonic() - began
        deed.join()
        other = self._answers(OTHER)
        heal()
        back = self._wait_until(lambda: VICTIM in self._box.members.alive()) and self._answers(VICTIM)
        return {"kind": kind, "told": told, "seconds": seconds, "other": other, "back": back}

    def _deeds(self, kind: str) -> tuple[Callable[[], None], Callable[[], None]]:
        if kind == "SIGSTOP":
            return lambda: os.kill(self._victim, signal.SIGSTOP), lambda: os.kill(self._victim, signal.SIGCONT)
        if kind == "link down":
            return lambda: self._mothers[0].link("down"), lambda: self._mothers[0].link("up")

        def again() -> None:
            self._victim = self._spawn_victim()

        return lambda: os.kill(self._victim, signal.SIGKILL), again

    def _answers(self, peer: int) -> bool:
        # It may still be on its way back: the first answer counts.
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                self._box.ask(peer, "short", _QUESTION)
            except LostPeer:
                continue
            return True
        return False

    def _wait_until(self, true: Callable[[], bool]) -> bool:
        with self._box.members.changed:
            return self._box.members.changed.wait_for(true, _PATIENCE)

    def end(self) -> int:
        """Close the mailbox and end the nodes; how many processes are left."""
        self._house.close()
        for mother in self._mothers:
            mother.end()
        groups = [mother.process.pid for mother in self._mothers]
        deadline = time.monotonic() + _PATIENCE
        # The killed are still listed until somebody has taken note.
        while (left := sum(_group(pid) in groups for pid in _processes())) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left


def held() -> dict[str, int]:
    """What this process holds."""
    return {"descriptors": len(list(Path("/proc/self/fd").iterdir())), "threads": threading.active_count()}


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def main() -> None:
    """So many cycles, kind after kind."""
    options = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    before = held()
    driver = Driver(options["namespaces"], options["hosts"], options["timeout"], options["bytes"])
    try:
        rows = []
        for k in range(options["cycles"]):
            rows.append(driver.cycle(KINDS[k % len(KINDS)]))
            print(f"cycle {k + 1} of {options['cycles']}: {rows[-1]['kind']}", file=sys.stderr, flush=True)
        during = held()
    finally:
        left = driver.end()
    print(json.dumps({"rows": rows, "before": before, "during": during, "after": held(), "processes": left}))


if __name__ == "__main__":
    main()
