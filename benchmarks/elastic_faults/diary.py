"""What nodes write down while they train, line by line, and whoever reads along.

Every life of a node has a file of its own. Moments are of the machine's clock, which all its processes share.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Diary:
    """Of one life of one node."""

    def __init__(self, folder: Path, node: int) -> None:
        self._file = (folder / f"node-{node}-{time.monotonic_ns()}.jsonl").open("a", buffering=1)
        self._node = node

    def write(self, what: str, **rest: Any) -> None:
        """One line, of now."""
        line = {"at": time.monotonic(), "node": self._node, "pid": os.getpid(), "what": what, **rest}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Nothing more happened."""
        self._file.close()


class Reader:
    """All diaries of a run, read along."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._read = folder, dict[Path, int]()
        self.lines: list[Line] = []

    def look(self) -> list[Line]:
        """All lines so far, by moment."""
        for path in self._folder.glob("node-*.jsonl"):
            with path.open() as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind("\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            self.lines += map(json.loads, whole.splitlines())
        self.lines.sort(key=lambda line: line["at"])
        return self.lines


def told(lines: Iterable[Line], what: str, *, node: int | None = None, after: float = -math.inf) -> list[Line]:
    """Lines of one kind: of one node, if given, and after a moment."""
    return [x for x in lines if x["what"] == what and node in (None, x["node"]) and x["at"] > after]
