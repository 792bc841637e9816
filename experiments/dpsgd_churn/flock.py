"""Four nodes behind links of their own, that can be killed and started again while they train."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flockstep.compare.lab.lab import Lab

_ROOT = Path(__file__).parents[2]
_PATIENCE = 600.0
_PORT = 29600
NODES = 4


class Flock:
    """Processes of ``train.py`` in a laboratory, and how far they say they are."""

    def __init__(self, folder: Path, budget: int, seed: int, rate: str) -> None:
        self._folder, self._words = folder, ["--budget", str(budget), "--seed", str(seed)]
        self._lab = Lab(nodes=NODES, rate=rate)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._waiting: dict[int, subprocess.Popen[bytes]] = {}
        self._pids: dict[int, int] = {}
        self._said: dict[int, list[str]] = {}
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self._lab.__enter__()
        founders = {"WORLD_SIZE": str(NODES), "FLOCKSTEP_STORE": str(self._folder / "store")}
        for rank in range(NODES):
            self._enrol(rank, self._begin(rank, founders))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lab.__exit__(kind, error, at)

    def wait_until(self, progress: float, rank: int) -> None:
        """Until a node has said that this much of the budget is spent."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._progress(rank) >= progress or self._ended(rank), _PATIENCE):
                raise RuntimeError(f"node {rank} did not come to {progress} in time")
        if self._progress(rank) < progress:
            raise RuntimeError(f"node {rank} ended before {progress}: {self._errors(rank)}")

    def kill(self, rank: int) -> None:
        """kill -9, and wait until it is gone; by the number that it has said, whoever started it for us."""
        os.kill(self._pids[rank], signal.SIGKILL)
        self._processes[rank].wait()

    def prepare(self, rank: int, contact: int) -> None:
        """The same node again, which will know nothing but the address of another; it imports torch, and waits.

        Starting Python and torch takes as long here as a good part of a run.
        """
        pipe = self._folder / f"again-{rank}"
        os.mkfifo(pipe)
        address = f"{self._lab.nodes[contact].address}:{_PORT}"
        self._waiting[rank] = self._begin(rank, {"FLOCKSTEP_JOIN": address}, "--after", str(pipe))

    def restart(self, rank: int) -> None:
        """Its moment has come."""
        self._enrol(rank, self._waiting.pop(rank))
        (self._folder / f"again-{rank}").write_bytes(b"now")

    def finish(self) -> dict[str, Any]:
        """What node 0 says in the end."""
        for rank, process in self._processes.items():
            if code := process.wait(_PATIENCE):
                raise RuntimeError(f"node {rank} ended with exit code {code}: {self._errors(rank)}")
        with self._changed:
            self._changed.wait_for(lambda: self._said[0] and self._said[0][-1].startswith("{"), 10.0)
        told: dict[str, Any] = json.loads(self._said[0][-1])
        return told

    def _begin(self, rank: int, environment: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
        node = self._lab.nodes[rank]
        place = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "FLOCKSTEP_HOST": node.address,
            "FLOCKSTEP_PORT": str(_PORT),
            "FLOCKSTEP_INSECURE": "1",
            "FLOCKSTEP_TIMEOUT": "10 s",
        }
        with (self._folder / f"errors-{rank}").open("ab") as errors:
            command = [sys.executable, "-u", "-m", "experiments.dpsgd_churn.train", *self._words, *words]
            return node.start(command, {**environment, **place}, stdout=subprocess.PIPE, stderr=errors, cwd=_ROOT)

    def _enrol(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self._processes[rank], self._said[rank] = process, []
        threading.Thread(target=self._listen, args=(rank, process), daemon=True).start()

    def _listen(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        said = self._said[rank]
        for line in process.stdout or ():
            with self._changed:
                said.append(line.decode().strip())
                if said[-1].startswith("process "):
                    self._pids[rank] = int(said[-1].split()[1])
                # Only the latest is of interest.
                del said[:-2]
                self._changed.notify_all()
        with self._changed:
            said.append("" if not said else said[-1])
            self._changed.notify_all()

    def _progress(self, rank: int) -> float:
        found = [re.search(r"progress ([\d.]+)", line) for line in self._said[rank]]
        return max((float(match[1]) for match in found if match), default=0.0)

    def _ended(self, rank: int) -> bool:
        return self._processes[rank].poll() is not None

    def _errors(self, rank: int) -> str:
        return (self._folder / f"errors-{rank}").read_text()[-2000:]
