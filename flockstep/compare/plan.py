"""What is to be compared: strategies, each with its optimizer, on one workload and one cluster, with several seeds."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import flockstep as fs
from flockstep import check
from flockstep.compare import user_code
from flockstep.compare.cluster import Cluster, RealCluster
from flockstep.compare.folder import Record
from flockstep.strategy import describe
from flockstep.texts import parse
from flockstep.texts.optimizer_texts import OptimizerName

# Losses recorded along a run: enough for a smooth curve and a progress bar that moves.
_ROWS = 40


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One strategy of a comparison, and how its nodes step; a user's own loop has an optimizer of its own."""

    text: str
    label: str | None = None
    optimizer: OptimizerName | None = None
    lr: float | None = None
    rate_is_said: bool = False
    """Whether the plan has a rate for this strategy alone, so that none is searched for."""

    def __post_init__(self) -> None:
        self.strategy()
        if self.lr is not None:
            check.positive("compare", "lr", self.lr)

    def strategy(self) -> fs.Strategy:
        """The strategy itself."""
        return parse.strategy(self.text)

    def describe(self) -> str:
        """The strategy as one would write it."""
        return describe(self.strategy())

    def steps_with(self) -> str:
        """The optimizer, as one would write it."""
        if self.optimizer is None or self.lr is None:
            return "its own"
        return self.optimizer.describe(self.lr)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is to be run."""

    command: str
    workload: str
    cluster: Cluster | RealCluster
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    steps: int
    """Of each node on average; 0 where the user's own loop decides."""
    target: float | None
    rates: tuple[float, ...] = ()
    """Learning rates of which every strategy is to take its best."""
    search: tuple[str, ...] = ()
    """What a search among them found, a line for each strategy."""

    def __post_init__(self) -> None:
        for rate in self.rates:
            check.positive("compare", "rates", rate)
        if len(set(self.rates)) < len(self.rates):
            raise ValueError(f"compare.rates must be different numbers, got {list(self.rates)}")
        if not self.entries:
            raise ValueError("compare needs at least one strategy")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"compare.seeds must be different numbers, at least one, got {list(self.seeds)}")
        for seed in self.seeds:
            check.whole("compare", "seed", seed, at_least=0)
        if self.target is not None:
            check.real("compare", "target", self.target)
        check.whole("compare", "steps", self.steps, at_least=0)

    @property
    def real(self) -> bool:
        """Whether it runs on processes, not on virtual nodes."""
        return isinstance(self.cluster, RealCluster)

    @property
    def record_every(self) -> int:
        """Steps between losses."""
        return max(1, self.steps // _ROWS)

    @property
    def labels(self) -> list[str]:
        """A name for each strategy, as short as tells them apart."""
        short = [entry.describe().partition("(")[0] for entry in self.entries]
        whole = [entry.describe() for entry in self.entries]
        full = [f"{entry.describe()} with {entry.steps_with()}" for entry in self.entries]
        labels = [entry.label or _first_unique(i, short, whole, full) for i, entry in enumerate(self.entries)]
        twice = [label for label, count in Counter(labels).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} is named twice; what is compared must differ, or have a label of its own")
        return labels

    def thing(self) -> fs.Workload | user_code.Loop:
        """What is trained: a workload, or the user's own loop."""
        return user_code.load(self.workload) if user_code.is_place(self.workload) else parse.workload(self.workload)

    def record(self) -> Record:
        """As it is kept."""
        per_gradient, what = samples_of(self.thing())
        return Record(
            command=self.command,
            versions=versions(),
            workload=self.workload,
            cluster=self.cluster.record(),
            strategies=[entry.describe() for entry in self.entries],
            labels=self.labels,
            optimizers=[entry.steps_with() for entry in self.entries],
            seeds=list(self.seeds),
            steps=self.steps,
            samples_per_step=self.cluster.nodes * per_gradient,
            samples=what,
            real=self.real,
            target=self.target,
            search=list(self.search),
        )


def _first_unique(index: int, *namings: Sequence[str]) -> str:
    return next((names[index] for names in namings if names.count(names[index]) == 1), namings[-1][index])


def samples_of(thing: Any) -> tuple[int, str]:
    """How many samples are in a gradient, where the workload says so with an attribute ``batch``; else it is one."""
    batch = getattr(thing, "batch", getattr(thing, "_batch", None))
    return (batch, "samples") if isinstance(batch, int) else (1, "gradients")


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    return {"flockstep": fs.__version__, "torch": torch.__version__, "python": platform.python_version()}


# Neither changes a run: another target only changes the table, and more seeds or strategies only add runs.
_FREE = ("command", "target", "seeds", "labels", "strategies", "optimizers", "search")


def check_continues(new: Record, old: Record, out: Path) -> None:
    """ValueError where a folder holds another comparison than the one that is to go on in it."""
    differing = {name: (getattr(old, name), getattr(new, name)) for name in vars(new) if name not in _FREE}
    for name, pairs in (
        ("strategies", (old.strategies, new.strategies)),
        ("optimizers", (old.optimizers, new.optimizers)),
    ):
        common = min(len(pairs[0]), len(pairs[1]))
        differing[name] = (pairs[0][:common], pairs[1][:common])
    for name, (before, now) in differing.items():
        if before != now:
            raise ValueError(
                f"{out} holds another comparison, with {name} {_short(before)} and not {_short(now)}\n"
                "  give another --out, or --fresh to forget what is there"
            )


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
