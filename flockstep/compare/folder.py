"""The folder of a comparison: ``plan.json``, one file per run under ``runs/``, and what the report adds.

A run's file grows line by line: ``{"row": {...}}`` as losses come, and ``{"done": {...}}`` when it is over. One without
that last line was interrupted, and is run anew.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from flockstep.trace import Row, Trace


@dataclass(frozen=True, kw_only=True)
class Record:
    """What ``plan.json`` holds: all that was asked for, as text and numbers."""

    command: str
    """As it was typed."""
    versions: dict[str, str]
    """Of flockstep, torch and Python."""
    workload: str
    cluster: dict[str, Any]
    """``nodes``, ``link``, ``latency``, ``step`` (seconds of a gradient), ``spread``, ``stragglers`` and ``faults``,
    the last two as lists of texts such as ``3:4x`` and ``crash 5@60s``; for real ones ``links`` says what they are."""
    strategies: list[str]
    """In order; the first is what the others are compared with."""
    labels: list[str]
    """A short name for each strategy, all different."""
    optimizers: list[str]
    """Each strategy's, such as ``SGD(lr=4)``."""
    seeds: list[int]
    steps: int
    """Steps of each node; 0 where the user's own function decides."""
    samples_per_step: int
    """What one step of every node takes in, all nodes together: a row's samples are its step times this."""
    samples: str
    """What those are: ``samples``, or ``gradients`` where nobody knows how many samples are in one."""
    real: bool
    target: float | None
    """The loss to be reached; None: the lowest that all of them reached, see ``report.figures.target_of``."""
    search: list[str] = field(default_factory=list)
    """What a search for learning rates found, a line for each strategy."""

    @classmethod
    def read(cls, out: Path) -> Record | None:
        """The plan of a folder; None where there is none."""
        path = out / "plan.json"
        if not path.exists():
            return None
        data = json.loads(path.read_text(encoding="utf8"))
        missing = {each.name for each in fields(cls)} ^ set(data)
        if missing:
            raise ValueError(f"{path} was written by another version of flockstep: {', '.join(sorted(missing))} differ")
        return cls(**data)

    def write(self, out: Path) -> None:
        """Into a folder, whole or not at all."""
        out.mkdir(parents=True, exist_ok=True)
        new = out / "plan.json.new"
        new.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf8")
        new.replace(out / "plan.json")


class Outcome(NamedTuple):
    """One finished run."""

    seed: int
    trace: Trace
    failure: str | None
    """What ended it early, in one sentence."""


@dataclass(frozen=True)
class Results:
    """A comparison as far as it got."""

    plan: Record
    runs: list[list[Outcome]]
    """Of each strategy, its finished runs in the order of the seeds."""

    @classmethod
    def read(cls, out: str | Path) -> Results:
        """The results in a folder."""
        plan = Record.read(Path(out))
        if plan is None:
            raise ValueError(f"{out} holds no comparison: there is no plan.json in it")
        found = [
            [finished(Path(out), plan, index, seed) for seed in plan.seeds] for index in range(len(plan.strategies))
        ]
        return cls(plan, [[run for run in line if run is not None] for line in found])


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Nobody else compares in this folder meanwhile, or ValueError; the lock dies with its holder."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise ValueError(
                f"another comparison is at work in {out}\n  wait until it has ended, or give another --out"
            ) from taken
        yield


def run_file(out: Path, index: int, seed: int) -> Path:
    """Where the run of one strategy with one seed is kept."""
    return out / "runs" / f"{index:02d}-{seed}.jsonl"


def finished(out: Path, plan: Record, index: int, seed: int) -> Outcome | None:
    """A run that is over and is the one planned; None where it has yet to be run."""
    path = run_file(out, index, seed)
    lines = path.read_text(encoding="utf8").splitlines() if path.exists() else []
    try:
        done = json.loads(lines[-1]).get("done") if lines else None
    except ValueError:
        # The process was killed in the middle of a line.
        return None
    if done is None or (done["strategy"], done["optimizer"]) != (plan.strategies[index], plan.optimizers[index]):
        return None
    if done["timeline"] is None and seed == plan.seeds[0] and done["failure"] is None:
        # It was not the first seed then, and is now: the first has a timeline.
        return None
    return Outcome(seed, Trace.from_json(json.dumps(done)), done["failure"])


class RunWriter:
    """One run's file, written as it goes."""

    def __init__(self, path: Path, *, optimizer: str) -> None:
        self._optimizer = optimizer
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def row(self, row: Row) -> None:
        """A loss came."""
        self._write({"row": asdict(row)})

    def done(self, trace: Trace, failure: str | None) -> None:
        """The run is over."""
        self._write({"done": {**json.loads(trace.to_json()), "optimizer": self._optimizer, "failure": failure}})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
