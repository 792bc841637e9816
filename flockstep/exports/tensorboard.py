"""Scalars of a joined loop for TensorBoard, written as it goes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flockstep import check
from flockstep.timeline import KINDS
from flockstep.trace import NodeReport, Row


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Where a joined loop writes its scalars, and how often: ``join(..., tensorboard=TensorBoard(folder="runs/a"))``.

    Losses and spreads are written whenever the loop logs one; bytes, seconds and steps per second every so many steps.
    Node 0 writes into the folder itself, and with ``all_nodes`` every other one into ``node-RANK`` of it.
    """

    folder: str | Path
    every: int = 10
    all_nodes: bool = False

    def __post_init__(self) -> None:
        check.whole(self, "every", self.every)

    @classmethod
    def at(cls, given: TensorBoard | str | Path | None) -> TensorBoard | None:
        """A folder is one with the usual settings."""
        if given is None or isinstance(given, TensorBoard):
            return given
        if not isinstance(given, str | Path):
            raise TypeError(f"join.tensorboard must be a folder or a TensorBoard, got {given!r}")
        return cls(folder=given)

    def open(self, rank: int, step: int, now: float, *, virtual: bool) -> Scalars | None:
        """One node's scalars from this step and second on; None where the node writes none."""
        if rank and not self.all_nodes:
            return None
        folder = Path(self.folder) / f"node-{rank}" if rank else Path(self.folder)
        return Scalars(folder, self.every, step, now, virtual=virtual)


class Scalars:
    """One node's. In a simulation TensorBoard's clock shows virtual seconds."""

    def __init__(self, folder: Path, every: int, step: int, now: float, *, virtual: bool) -> None:
        # After a resume, what an interrupted run wrote of later steps is hidden.
        self._writer = _writer()(str(folder), purge_step=step + 1 if step else None)
        self._every, self._virtual = every, virtual
        self._written, self._seconds = step, now

    def row(self, row: Row) -> None:
        """A loss that the loop logged."""
        self._put("loss", row.loss, row.step, row.seconds)
        if math.isfinite(row.spread):
            self._put("spread", row.spread, row.step, row.seconds)

    def step(self, report: NodeReport, now: float) -> None:
        """A step was taken; ``now`` are the node's seconds."""
        if report.steps - self._written >= self._every:
            self._write(report, now)

    def close(self, report: NodeReport, now: float) -> None:
        """The loop has ended."""
        if report.steps > self._written:
            self._write(report, now)
        self._writer.close()

    def _write(self, report: NodeReport, now: float) -> None:
        if now > self._seconds:
            pace = (report.steps - self._written) / (now - self._seconds)
            self._put("steps per second", pace, report.steps, now)
        for name in ("sent", "received"):
            self._put(f"bytes/{name}", getattr(report, f"bytes_{name}"), report.steps, now)
        for kind in KINDS:
            self._put(f"seconds/{kind}", getattr(report, kind), report.steps, now)
        self._written, self._seconds = report.steps, now

    def _put(self, tag: str, value: float, step: int, seconds: float) -> None:
        self._writer.add_scalar(tag, value, step, walltime=seconds if self._virtual else None)


def _writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("join.tensorboard needs TensorBoard: pip install 'flockstep[tensorboard]'") from error
    return SummaryWriter
