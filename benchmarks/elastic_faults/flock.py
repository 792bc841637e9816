"""The nodes of one run in a laboratory: started, killed, stopped, cut off, started again; and what they write down."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.elastic_faults.diary import Line, Reader, told
from flockstep.compare.lab.commands import run
from flockstep.compare.lab.lab import Lab

ROOT = Path(__file__).parents[2]
LONGEST, LONGEST_RUN = 120.0, 900.0
"""Seconds for anything to happen, and for a run to end."""
_GLANCE = 0.1


class Flock:
    """One run's nodes."""

    def __init__(self, lab: Lab, folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.lab, self._folder, self._words, self._environment = lab, folder, words, environment
        self.size = len(lab.nodes)
        self._diaries, self._processes = Reader(folder), dict[int, Any]()
        self._switch = lab.nodes[0].namespace.rpartition("-")[0] + "-switch"

    def start(self, rank: int) -> float:
        """Start a node, or start it again; when that was."""
        node, command = self.lab.nodes[rank], [sys.executable, "-m", *self.words(rank)]
        environment = self.environment(rank)
        with self._said(rank).open("ab") as said:
            at = time.monotonic()
            self._processes[rank] = node.start(command, environment, stdout=said, stderr=said, cwd=ROOT)
        return at

    def words(self, rank: int) -> Sequence[str]:
        """How a node is started."""
        return self._words

    def environment(self, rank: int) -> Mapping[str, str]:
        """What it is told beside its words."""
        own = {"FLOCKSTEP_HOST": self.lab.nodes[rank].address}
        return {**self.lab.torch_environment(rank), **own, **self._environment}

    def signal(self, rank: int, number: int) -> None:
        """To the process that trains."""
        os.kill(told(self.lines, "joins", node=rank)[-1]["pid"], number)

    def kill(self, rank: int) -> None:
        """As ``kill -9`` does."""
        self.signal(rank, KILL)
        self._processes[rank].wait()

    def link(self, rank: int, state: str) -> None:
        """Pull a node's cable out of the switch, or put it in."""
        self._do("link", "set", f"port{rank}", state)

    def part(self, ranks: range) -> None:
        """Some nodes reach each other, and the others among themselves; but these not those."""
        self._do("link", "add", "name", "other", "type", "bridge")
        self._do("link", "set", "other", "up")
        for rank in ranks:
            self._do("link", "set", f"port{rank}", "master", "other")

    def heal(self, ranks: range) -> None:
        """All reach each other again."""
        for rank in ranks:
            self._do("link", "set", f"port{rank}", "master", "switch")

    def _do(self, *words: str) -> None:
        run("ip", "-n", self._switch, *words, purpose="changes of the network")

    # What they write down -------------------------------------------------------------------------------------------

    @property
    def lines(self) -> list[Line]:
        """All so far."""
        return self._diaries.look()

    def until(self, true: Callable[[list[Line]], Any], what: str, longest: float = LONGEST) -> Any:
        """Wait for something in the diaries; what ``true`` made of them."""
        deadline = time.monotonic() + longest
        while not (found := true(self.lines)):
            self._check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come about within {longest:g} s; {self._last_words()}")
            time.sleep(_GLANCE)
        return found

    def rounds(self, more: int) -> None:
        """Wait until every node has finished so many rounds more."""
        now = time.monotonic()
        self.until(lambda lines: fewest(lines, self.size, now) >= more, f"{more} more rounds of all nodes")

    def first_round(self, rank: int, after: float) -> Line:
        """The first round that a node finishes after a moment, and that the others had not finished before it."""
        newest = max((x["round"] for x in told(self.lines, "round") if x["at"] <= after), default=-1)

        def found(lines: list[Line]) -> Line | None:
            its = told(lines, "round", node=rank, after=after)
            return next((line for line in its if line["round"] > newest), None)

        line: Line = self.until(found, f"a finished round of node {rank}")
        return line

    def end(self, period: int) -> list[Line]:
        """Let all end at the same step, soon; what they say last."""
        step = max((line["step"] for line in told(self.lines, "step")), default=0)
        return self.end_at((step // period + 3) * period)

    def end_at(self, step: int) -> list[Line]:
        """Let all end at a step; what they say last, by rank."""
        (self._folder / "soon").write_text(str(step))
        (self._folder / "soon").rename(self._folder / "end")
        self.until(lambda lines: len(told(lines, "end")) == self.size, "the end of all nodes", LONGEST_RUN)
        for process in self._processes.values():
            process.wait(LONGEST)
        return sorted(told(self.lines, "end"), key=lambda line: int(line["node"]))

    def models(self) -> list[dict[str, torch.Tensor]]:
        """What they ended with."""
        return [torch.load(self._folder / f"model-{rank}.pt") for rank in range(self.size)]

    def _check(self) -> None:
        for rank, process in self._processes.items():
            if process.poll() not in (None, 0):
                raise RuntimeError(f"node {rank} failed: {self._last_words(rank)}")

    def _last_words(self, rank: int | None = None) -> str:
        ranks = range(self.size) if rank is None else (rank,)
        return "; ".join(f"node {r} said last: {self._said(r).read_text()[-1500:]!r}" for r in ranks)

    def _said(self, rank: int) -> Path:
        return self._folder / f"said-{rank}.txt"


def fewest(lines: list[Line], size: int, after: float) -> int:
    """How many rounds every node has finished since a moment."""
    return min(len(told(lines, "round", node=rank, after=after)) for rank in range(size))


STOP, CONTINUE, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL
