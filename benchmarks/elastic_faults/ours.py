"""An elastic run that misfortunes befall, and the same without any, until as many gradients are taken."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.elastic_faults.diary import told
from benchmarks.elastic_faults.flock import Flock
from benchmarks.elastic_faults.misfortunes import befall
from benchmarks.elastic_faults.node import PERIOD
from benchmarks.elastic_faults.rows import Row, Setting, row_of
from benchmarks.elastic_faults.task import validation_loss
from flockstep.backends.real.security import keys
from flockstep.compare.lab.lab import Lab


class Kind(NamedTuple):
    """One run."""

    strategy: str
    keys: bool = False

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.strategy}, TLS" if self.keys else self.strategy


def words(setting: Setting, strategy: str, folder: Path, step_seconds: float | None = None) -> list[str]:
    """How a node is started."""
    seconds = setting.step_seconds if step_seconds is None else step_seconds
    given = {"folder": folder, "strategy": strategy, "patience": setting.patience, "step-seconds": seconds}
    return ["benchmarks.elastic_faults.node", *(f"--{name}={value}" for name, value in given.items())]


def environment(kind: Kind, folder: Path, nodes: int) -> dict[str, str]:
    """Where nodes meet, and their keys."""
    if not kind.keys:
        return {"FLOCKSTEP_STORE": str(folder / "store")}
    keys.create(folder / "keys", nodes)
    return {"FLOCKSTEP_STORE": str(folder / "store"), "FLOCKSTEP_KEYS": str(folder / "keys"), "FLOCKSTEP_INSECURE": ""}


def disturbed(kind: Kind, setting: Setting) -> tuple[list[Row], int]:
    """A run with all its misfortunes: a row of each, and one of the end; and how many gradients were taken."""
    with tempfile.TemporaryDirectory() as name, Lab(nodes=setting.nodes, rate=setting.rate) as lab:
        folder = Path(name)
        flock = Flock(lab, folder, words(setting, kind.strategy, folder), environment(kind, folder, setting.nodes))
        for rank in range(setting.nodes):
            flock.start(rank)
        flock.rounds(setting.calm)
        events = befall(flock, setting.misfortunes, dict(setting.seconds))
        ends = flock.end(PERIOD)
        lines = flock.lines
        loss = validation_loss(flock.models())
    transfer = max(end["checkpoint"] for end in ends) / lab.bytes_per_second
    rows = [row_of(kind.name, event, events[0].at, lines, setting, transfer) for event in events]
    gradients = len(told(lines, "step"))
    end = {"run": kind.name, "event": "end", "steps": ends[0]["step"], "gradients": gradients, "loss": round(loss, 4)}
    return [*rows, end], gradients


def undisturbed(kind: Kind, setting: Setting, gradients: int) -> Row:
    """The same without misfortunes, with as many gradients. Nodes do not sleep: periods do not depend on it."""
    steps = PERIOD * math.ceil(gradients / setting.nodes / PERIOD)
    with tempfile.TemporaryDirectory() as name, Lab(nodes=setting.nodes, rate=setting.rate) as lab:
        folder = Path(name)
        of_one = words(setting, kind.strategy, folder, step_seconds=0.0)
        flock = Flock(lab, folder, of_one, environment(kind, folder, setting.nodes))
        (folder / "end").write_text(str(steps))
        for rank in range(setting.nodes):
            flock.start(rank)
        flock.end_at(steps)
        loss = validation_loss(flock.models())
    gradients = steps * setting.nodes
    return {"run": kind.name, "event": "undisturbed", "steps": steps, "gradients": gradients, "loss": round(loss, 4)}
