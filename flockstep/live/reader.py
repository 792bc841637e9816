"""Follows the journals of a folder: what is new since the last look, and who lives."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from flockstep.live import alive
from flockstep.live.life import Life
from flockstep.live.lines import Line, decode

_NAME = re.compile(r"node-(\d+)-(\d+)\.jsonl")


def journals(folder: Path) -> list[Path]:
    """The journals there are, by rank and incarnation; none where there is no folder."""
    if not folder.is_dir():
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    found = sorted((int(match[1]), int(match[2]), path) for match, path in named if match)
    return [path for _, _, path in found]


class Followed:
    """One file, read piece by piece. What stands behind the last end of a line is left for the next time."""

    def __init__(self, path: Path) -> None:
        self._path, self._first, self._offset = path, b"", 0

    def new(self) -> list[Line]:
        """The lines since the last time. A file whose first line is another one was made short: all of its lines."""
        with self._path.open("rb") as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                return []
            if first != self._first:
                self._first, self._offset = first, 0
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return decode(data[:whole])


class Reader:
    """Everything known of a run: a life for each journal, brought up to date by ``look``."""

    def __init__(
        self,
        folder: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        lives: Callable[[int, int | None], bool] = alive.lives,
    ) -> None:
        self.folder, self.clock = Path(folder), clock
        self._lives, self._here = lives, alive.here()
        self._followed: dict[Path, Followed] = {}
        self._known: dict[Path, Life] = {}

    def look(self) -> list[Life]:
        """Read on; gives the lives, by rank and incarnation."""
        paths = journals(self.folder)
        for path in paths:
            self._read(path)
            life = self._known.get(path)
            if life is not None and life.local and not life.over and not self._lives(life.pid, life.born):
                # Its last words may have been written since they were looked for.
                self._read(path)
                life.dead = True
        return [self._known[path] for path in paths if path in self._known]

    def _read(self, path: Path) -> None:
        try:
            new = self._followed.setdefault(path, Followed(path)).new()
        except FileNotFoundError:
            return
        for line in new:
            if "who" in line:
                self._known[path] = Life.of(line["who"], here=self._here)
            elif path in self._known:
                self._known[path].take(line)
