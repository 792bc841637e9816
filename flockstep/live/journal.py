"""A node's journal: one file of JSON lines, written while the node trains, for others to read meanwhile.

``node-RANK-INCARNATION.jsonl`` in a folder. The first line says who writes; each line after it is an object of
  {"t": seconds, "spans": [[kind, begin, end], ...], "sent": [[peer, bytes], ...], "to": peer, "steps": n}   a beat
  {"row": {...}}      a loss that was recorded
  {"peers": [...]}    who lives, as far as this node knows, whenever that changes
  {"view": {...}}     in an elastic run: who takes part from now on, who came, who was left out, and what it cost
  {"left": {...}}     the last line of a node that ended by itself; "failure" says why where it was no good end
Times are seconds since the first line's "began".

A node tells at every verb, so telling only gathers, under a lock nobody holds for long. A thread of its own writes,
a few times a second. It could not be the node's: one that computes or waits for a minute tells nothing meanwhile, and
what it told just before must be on file when it is killed in that minute.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from flockstep import check
from flockstep.live import alive, lines
from flockstep.live.coarse import at_most, coarsen
from flockstep.timeline import KINDS, Span, Timeline
from flockstep.trace import NodeReport, Row, ViewChange

FORMAT = 1
BEAT, SIGN_OF_LIFE = 0.25, 1.0
"""Seconds between writes where there is something to tell, and where there is nothing."""
GRAIN = 0.01
"""Spans within so many seconds are put together: a loop of microseconds must not fill the disk."""
_HELD = 4096
_LONGEST = 4 << 20


def open_journal(folder: str | Path, *, rank: int, size: int, strategy: str) -> Journal:
    """A new journal for a node; the folder is made where there is none.

    A node that begins anew, or joins a second time, has another file, with the next incarnation.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    incarnation = 0
    while True:
        path = folder / f"node-{rank}-{incarnation}.jsonl"
        try:
            file = path.open("xb", buffering=0)
        except FileExistsError:
            incarnation += 1
            continue
        return Journal(file, path, rank=rank, size=size, strategy=strategy, incarnation=incarnation)


class Journal(Timeline):
    """A timeline of one node that goes to a file. ``spans`` are only those not written yet."""

    def __init__(
        self, file: BinaryIO, path: Path, *, rank: int, size: int, strategy: str, incarnation: int = 0
    ) -> None:
        super().__init__()
        self.path = path
        self._rank = check.whole("Journal", "rank", rank, at_least=0)
        self._file, self._size, self._pid = file, 0, os.getpid()
        self._lock, self._writing, self._stop = threading.Lock(), threading.Lock(), threading.Event()
        self._pending: list[dict[str, Any]] = []
        self._unwritten: dict[int, int] = {}
        self._to: int | None = None
        self._living: tuple[int, ...] | None = None
        self._tally: NodeReport | None = None
        self._steps, self._shift = 0, 0.0
        self._zero, self._spoke = time.perf_counter(), 0.0
        self._who = {
            "format": FORMAT,
            "rank": rank,
            "size": size,
            "incarnation": incarnation,
            "strategy": strategy,
            "host": alive.here(),
            "pid": self._pid,
            "born": alive.born(self._pid),
            "began": time.time(),
        }
        self._put([{"who": self._who}])
        self._thread = threading.Thread(target=self._beat, name=f"journal of node {rank}", daemon=True)
        self._thread.start()
        # What was told in the last moments of a process that ends without a word is still written.
        atexit.register(self._write)

    def spend(self, rank: int, kind: str, begin: float, end: float) -> None:
        """So long the node did this, just now."""
        if end <= begin:
            return
        with self._lock:
            spans = self.spans
            if not spans:
                # The node's clock stops while losses are measured; in a picture of the run, time goes on.
                self._shift = time.perf_counter() - self._zero - end
            elif spans[-1].kind == kind and spans[-1].end == begin:
                spans[-1] = Span(rank, kind, spans[-1].begin, end)
                return
            elif len(spans) >= _HELD:
                self.spans = spans = at_most(spans, _HELD // 2, GRAIN)
            spans.append(Span(rank, kind, begin, end))

    def send(self, rank: int, peer: int, nbytes: int) -> None:
        """So many bytes left the node for another."""
        with self._lock:
            self.sent[rank, peer] = self.sent.get((rank, peer), 0) + nbytes
            self._unwritten[peer] = self._unwritten.get(peer, 0) + nbytes
            self._to = peer

    def row(self, row: Row) -> None:
        """A loss was recorded."""
        self._tell({"row": _without_nan(asdict(row))})

    def peers(self, living: Iterable[int]) -> None:
        """Who lives, as far as the node knows; told again only when it changes."""
        living = tuple(sorted(living))
        if living != self._living:
            self._living = living
            self._tell({"peers": list(living), "t": self._now()})

    def view(self, change: ViewChange) -> None:
        """Other nodes take part from now on; the first tells who begins, and has nobody who came or went."""
        told = asdict(change)
        # The node's clock stops while losses are measured; here it goes on.
        del told["seconds"]
        self._tell({"view": told | {"cost": round(change.cost, 6)}, "t": self._now()})

    def follow(self, tally: NodeReport) -> None:
        """Look at the node's steps whenever something is written, which costs the node nothing."""
        self._tally = tally

    def close(self, failure: BaseException | None = None) -> None:
        """The node has ended, well or badly; twice is once."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._write()
        left: dict[str, Any] = {"t": self._now()}
        if failure is not None:
            left["failure"] = f"{type(failure).__name__}: {failure}"
        with self._writing:
            self._put([{"left": left}])
            self._file.close()
        atexit.unregister(self._write)

    def _now(self) -> float:
        return round(time.perf_counter() - self._zero, 6)

    def _tell(self, line: dict[str, Any]) -> None:
        with self._lock:
            if not self._stop.is_set():
                self._pending.append(line)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            self._write()

    def _write(self) -> None:
        # Not in a process that was forked from the node's: it has a copy of all this.
        if os.getpid() != self._pid:
            return
        with self._writing:
            if not self._file.closed:
                self._put(self._take())

    def _take(self) -> list[dict[str, Any]]:
        """What was told since the last time, as lines."""
        with self._lock:
            spans, self.spans = self.spans, []
            sent, self._unwritten = self._unwritten, {}
            pending, self._pending = self._pending, []
            to, self._to, shift = self._to, None, self._shift
        beat: dict[str, Any] = {"t": self._now()}
        if spans:
            beat["spans"] = [
                [KINDS.index(kind), round(begin + shift, 6), round(end + shift, 6)]
                for _, kind, begin, end in coarsen(spans, GRAIN)
            ]
        if sent:
            beat |= {"sent": [list(pair) for pair in sent.items()], "to": to}
        steps = self._steps if self._tally is None else self._tally.steps
        if steps != self._steps:
            beat["steps"] = self._steps = steps
        if len(beat) > 1 or beat["t"] - self._spoke >= SIGN_OF_LIFE:
            self._spoke = beat["t"]
            pending.append(beat)
        return pending

    def _put(self, pending: list[dict[str, Any]]) -> None:
        """Append in one write, so that a reader sees whole lines but for the moment of it."""
        if not pending:
            return
        data = lines.encode(pending)
        try:
            lines.write(self._file, data)
            self._size += len(data)
            if self._size > _LONGEST:
                self._file, self._size = lines.shorten(self.path, self._file, _LONGEST // 4)
        except OSError as error:
            # A full disk ends the journal, not the training.
            self._stop.set()
            self._file.close()
            warnings.warn(f"the journal {self.path} ends here: {error}", RuntimeWarning, stacklevel=2)


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    # A browser's JSON knows no NaN.
    return {name: value if math.isfinite(value) else None for name, value in row.items()}
