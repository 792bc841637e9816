"""One process per node of a laboratory, and the JSON each ends with."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

from flockstep.compare.lab.lab import Lab, LabNode

ROOT = Path(__file__).parents[2]
_GLANCE = 0.1


def run_everywhere(
    lab: Lab, module: str, *words: str, timeout: float, nodes: Sequence[LabNode] | None = None
) -> list[dict[str, Any]]:
    """Run ``python -m module words`` on every node at once; each one's last line on stdout, read as JSON, by rank.

    On some of the nodes only, if given. RuntimeError with the end of what it said if one fails, or if they take
    longer than ``timeout`` seconds. Node 0's stderr is passed on as it comes: that is where it says how far it is.
    """
    command = [sys.executable, "-m", module, *words]
    crew: list[Member] = []
    with ExitStack() as stack:
        for node in lab.nodes if nodes is None else nodes:
            out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            environment = lab.torch_environment(node.rank)
            process = node.start(command, environment, stdout=out, stderr=err if node.rank else None, cwd=ROOT)
            stack.callback(_end, process)
            crew.append(Member(node.rank, process, out, err))
        _wait(crew, module, timeout)
        return [json.loads(_text(member.out).splitlines()[-1]) for member in crew]


class Member(NamedTuple):
    """One node's process, and what it says."""

    rank: int
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]


def _wait(crew: list[Member], module: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        states = [member.process.poll() for member in crew]
        # One that failed leaves the others waiting for it: they need not.
        for member, state in zip(crew, states, strict=True):
            if state:
                raise RuntimeError(f"{module} failed on node {member.rank}: {_text(member.err)[-2000:] or 'see above'}")
        if None not in states:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{module} took longer than {timeout:g} s")
        time.sleep(_GLANCE)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
