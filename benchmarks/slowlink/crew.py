"""One process per node of a laboratory, and the JSON each ends with."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

from benchmarks.slowlink.lab import Lab

_GLANCE = 0.1


def run_everywhere(lab: Lab, module: str, *words: str, timeout: float) -> list[dict[str, Any]]:
    """Run ``python -m module words`` on every node at once; each one's last line on stdout, read as JSON, by rank.

    RuntimeError with the end of what it said if one fails, or if they take longer than ``timeout`` seconds. Node 0's
    stderr is passed on as it comes: that is where it says how far it is.
    """
    command = [sys.executable, "-m", module, *words]
    started: list[subprocess.Popen[bytes]] = []
    files: list[tuple[IO[bytes], IO[bytes]]] = []
    try:
        for node in lab.nodes:
            out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
            files.append((out, err))
            environment = lab.torch_environment(node.rank)
            started.append(node.start(command, environment, stdout=out, stderr=err if node.rank else None))
        _wait(started, files, module, time.monotonic() + timeout)
        return [json.loads(_text(out).splitlines()[-1]) for out, _ in files]
    finally:
        for process in started:
            process.kill()
            process.wait()
        for pair in files:
            for file in pair:
                file.close()


def _wait(
    started: list[subprocess.Popen[bytes]], files: list[tuple[IO[bytes], IO[bytes]]], module: str, deadline: float
) -> None:
    while any(process.poll() is None for process in started):
        for rank, process in enumerate(started):
            # One that failed leaves the others waiting for it: they need not.
            if process.poll():
                raise RuntimeError(f"{module} failed on node {rank}: {_text(files[rank][1])[-2000:] or 'see above'}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{module} took too long")
        time.sleep(_GLANCE)
    for rank, process in enumerate(started):
        if process.returncode:
            raise RuntimeError(f"{module} failed on node {rank}: {_text(files[rank][1])[-2000:] or 'see above'}")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
