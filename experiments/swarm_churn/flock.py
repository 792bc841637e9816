"""Real processes of ``examples/shakespeare.py``, one per node, that can be killed and added while they train."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SCRIPT = Path(__file__).parents[2] / "examples" / "shakespeare.py"
STRATEGY = "Swarm(period=4, codec=Modular(bits=8))"
_PATIENCE = 900.0
# Starting Python and torch takes longer than some of the runs here.
_LATER = """
import runpy, sys
import flockstep.texts.parse, flockstep.codecs.lattice.on_numba, rich.progress
sys.stdin.readline()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Flock:
    """Starts nodes, listens to node 0, and leaves nobody behind."""

    def __init__(self, folder: Path, nodes: int, words: list[str]) -> None:
        self._folder, self._size, self._words = folder, nodes, words
        self._first_port = _free_ports(nodes)
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._progress = threading.Condition()
        self._steps, self._ended, self._said = 0, False, ""

    def __enter__(self) -> Self:
        founders = {"WORLD_SIZE": str(self._size), "FLOCKSTEP_STORE": str(self._folder / "store")}
        for rank in range(self._size):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "FLOCKSTEP_PORT": str(self._first_port)}
            self._start(rank, {**founders, **place}, self._words)
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def wait_until(self, steps: int) -> None:
        """Until node 0 has said that it has taken so many steps."""
        with self._progress:
            if not self._progress.wait_for(lambda: self._steps >= steps or self._ended, _PATIENCE) or self._ended:
                raise RuntimeError(f"node 0 ended before step {steps}: {self._said[-2000:]}")

    def kill(self, rank: int) -> None:
        """kill -9."""
        self._processes[rank].kill()

    def prepare(self, rank: int, words: list[str]) -> None:
        """One more, that knows nothing but the address of node 1. It imports torch, and waits for its moment."""
        self._start(rank, {"FLOCKSTEP_JOIN": f"127.0.0.1:{self._first_port + 1}", "RANK": str(rank)}, words, later=True)

    def add(self, rank: int) -> None:
        """The moment has come."""
        pipe = self._processes[rank].stdin
        if pipe is not None:
            pipe.write("go\n")
            pipe.close()

    def finish(self, expected: list[int]) -> tuple[float, float, dict[int, list[float]]]:
        """The loss of the average model on unseen text, MB sent, and each expected node's losses step by step.

        One that came too late is taken off the list of those expected.
        """
        for rank in list(expected):
            code = self._processes[rank].wait(_PATIENCE)
            if code and re.search("comes too late|none of the nodes in FLOCKSTEP_JOIN answers", self._errors(rank)):
                # On a machine that is slow to start it, the others may be done by then: that is told, and no failure.
                expected.remove(rank)
            elif code:
                raise RuntimeError(f"node {rank} ended with exit code {code}: {self._errors(rank)}")
        with self._progress:
            self._progress.wait_for(lambda: self._ended, _PATIENCE)
        found = re.search(r"validation loss ([\d.]+).*sent ([\d.]+) MB", self._said, re.DOTALL)
        if found is None:
            raise RuntimeError(f"node 0 told no validation loss: {self._said[-2000:]}")
        losses = {rank: json.loads(self._losses(rank).read_text()) for rank in expected}
        return float(found[1]), float(found[2]), losses

    def _losses(self, rank: int) -> Path:
        return self._folder / f"losses-{rank}"

    def _errors(self, rank: int) -> str:
        path = self._folder / f"errors-{rank}"
        return path.read_text()[-2000:] if path.exists() else self._said[-2000:]

    def _start(self, rank: int, environment: dict[str, str], words: list[str], *, later: bool = False) -> None:
        begin = ["-c", _LATER, str(SCRIPT)] if later else [str(SCRIPT)]
        command = [sys.executable, "-u", *begin, "--strategy", STRATEGY, *words]
        command += ["--losses", str(self._folder / "losses"), "--out", str(self._folder)]
        errors: Any = subprocess.STDOUT if rank == 0 else (self._folder / f"errors-{rank}").open("w")
        self._processes[rank] = subprocess.Popen(
            command,
            env={**os.environ, "FLOCKSTEP_TIMEOUT": "60 s", "COLUMNS": "120", **environment},
            stdin=subprocess.PIPE if later else subprocess.DEVNULL,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )

    def _listen(self) -> None:
        lines = self._processes[0].stdout
        for line in lines or ():
            found = re.search(r"step (\d+) of", line)
            with self._progress:
                self._said += line
                self._steps = int(found[1]) if found else self._steps
                self._progress.notify_all()
        with self._progress:
            self._ended = True
            self._progress.notify_all()


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    for first in range(29600, 60000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")
