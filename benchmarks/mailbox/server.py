"""One row's serving process: says where it is, and answers until whoever started it is gone, however that came."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.mailbox.rows import WAYS
from benchmarks.mailbox.ways import Place, body

ROOT = Path(__file__).parents[2]


class Started:
    """A serving process as its owner sees it."""

    def __init__(self, name: str, place: Place) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.mailbox.server", name, place.host, str(place.folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the owner, who ends the rest in order.
            start_new_session=True,
        )

    def line(self) -> str:
        """Where it is, once it is there."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the process that serves {self._name!r} ended, see above")
        return line

    def end(self) -> None:
        """End it."""
        self._process.kill()
        with self._process:
            pass


@contextmanager
def serving(name: str, place: Place) -> Iterator[Started]:
    """A process that serves one row."""
    started = Started(name, place)
    try:
        yield started
    finally:
        started.end()


def main() -> None:
    """Serve the row that the command line names."""
    name, host, folder = sys.argv[1:]
    torch.set_num_threads(1)
    print(WAYS[name].serve(Place(host, Path(folder)), body()), flush=True)
    # Nobody writes here: it ends when the owner does.
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
