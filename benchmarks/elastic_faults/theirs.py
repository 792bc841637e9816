"""The same misfortunes, and torch elastic: an agent per node, which starts its worker again."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.elastic_faults.flock import KILL, Flock
from benchmarks.elastic_faults.misfortunes import befall
from benchmarks.elastic_faults.node import PERIOD
from benchmarks.elastic_faults.rows import Row, Setting, row_of
from benchmarks.elastic_faults.their_node import NODE
from flockstep.compare.lab.lab import Lab

NAME = "torch elastic"
SNAPSHOT_EVERY = 5
"""Rounds."""
_PORT = 29400
# With the store that all starts share, its default, workers may read where those before them listened, and restarts
# may go on for ever: pytorch issue 135712.
_STORE_PER_START = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Agents(Flock):
    """Agents stay; the workers they start are killed and stopped."""

    def __init__(self, lab: Lab, folder: Path, words: Sequence[str]) -> None:
        super().__init__(lab, folder, words, {})
        self._agents, self._meeting = set[int](), f"{lab.nodes[0].address}:{_PORT}"

    def words(self, rank: int) -> Sequence[str]:
        """An agent."""
        options = {
            "nnodes": self.size,
            "nproc-per-node": 1,
            "max-restarts": 100,
            "rdzv-backend": "c10d",
            "rdzv-id": "faults",
            "rdzv-endpoint": self._meeting,
            "rdzv-conf": f"is_host={int(rank == 0)}",
            "local-addr": self.lab.nodes[rank].address,
        }
        return ["torch.distributed.run", *(f"--{name}={value}" for name, value in options.items()), *self._words]

    def environment(self, rank: int) -> Mapping[str, str]:
        """Ranks are dealt out anew each time: whose diary it is, the node says."""
        return {**super().environment(rank), **_STORE_PER_START, NODE: str(rank)}

    def start(self, rank: int) -> float:
        """An agent that is there starts its worker by itself."""
        if rank in self._agents:
            return time.monotonic()
        self._agents.add(rank)
        return super().start(rank)

    def kill(self, rank: int) -> None:
        """The worker only."""
        self.signal(rank, KILL)


def disturbed(setting: Setting) -> list[Row]:
    """A run with all its misfortunes: a row of each."""
    with tempfile.TemporaryDirectory() as name, Lab(nodes=setting.nodes, rate=setting.rate) as lab:
        folder = Path(name)
        given = {"folder": folder, "step-seconds": setting.step_seconds, "rounds-between-snapshots": SNAPSHOT_EVERY}
        words = [f"--{name}={value}" for name, value in given.items()]
        flock = Agents(lab, folder, ["--module", "benchmarks.elastic_faults.their_node", *words])
        for rank in range(setting.nodes):
            flock.start(rank)
        flock.rounds(setting.calm)
        events = befall(flock, setting.misfortunes, dict(setting.seconds))
        flock.end(PERIOD)
        lines = flock.lines
    return [row_of(NAME, event, events[0].at, lines, setting) for event in events]
