"""Ways for two cores to take gradient steps: on one vector, taking turns with a lock, or apart from each other."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.report import Progress
from flockstep.backends.real.crew.crew import Crew
from flockstep.workloads.workload import Workload


class Around:
    """A workload whose ``descend`` takes the steps of another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.leaves_interpreter_lock: bool = getattr(inner, "leaves_interpreter_lock", False)

    def start(self) -> Tensor:
        """Where that starts."""
        x: Tensor = self.inner.start()
        return x

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """The gradient of that."""
        g: Tensor = self.inner.gradient(x, rng)
        return g

    def loss(self, x: Tensor) -> float:
        """The loss of that."""
        return float(self.inner.loss(x))

    def shard(self, rank: int, size: int) -> Workload:
        """Not asked for here."""
        raise NotImplementedError

    def descend(self, x: Tensor, rng: np.random.Generator, steps: int, rate: float) -> None:
        """Plain gradient steps, by whichever way the other one has."""
        if hasattr(self.inner, "descend"):
            self.inner.descend(x, rng, steps, rate)
            return
        for _ in range(steps):
            x.add_(self.inner.gradient(x, rng), alpha=-rate)


class Locked(Around):
    """Who steps holds the lock, for ``block`` steps at a time."""

    def __init__(self, inner: Any, lock: AbstractContextManager[Any], block: int) -> None:
        super().__init__(inner)
        self.lock, self.block = lock, block

    def descend(self, x: Tensor, rng: np.random.Generator, steps: int, rate: float) -> None:
        """A block at a time."""
        for first in range(0, steps, self.block):
            with self.lock:
                super().descend(x, rng, min(self.block, steps - first), rate)

    def __deepcopy__(self, memo: dict[int, Any]) -> Locked:
        # A lock of its own would lock nobody out.
        return Locked(copy.deepcopy(self.inner, memo), self.lock, self.block)


class Apart(Around):
    """Each member on a vector of its own: what the machine gives to two who share nothing."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.leaves_interpreter_lock = False
        self._own: Tensor | None = None

    def descend(self, x: Tensor, rng: np.random.Generator, steps: int, rate: float) -> None:
        """Steps on a copy, made once."""
        if self._own is None:
            self._own = x.clone()
        super().descend(self._own, rng, steps, rate)


@dataclass(frozen=True, kw_only=True)
class Way:
    """Something to be timed: ``run(steps)`` has each of its members take so many."""

    name: str
    run: Callable[[int], None]
    members: int
    over: str
    """The way of one member that its speed-up is against."""

    @classmethod
    def of_crew(cls, name: str, crew: Crew, counts: Sequence[int], *, over: str) -> Way:
        """A crew whose member i is at work where ``counts[i]`` is 1, and idle where it is 0."""
        return cls(name=name, run=lambda n: crew.work([n * c for c in counts]), members=sum(counts), over=over)


def measure(case: str, ways: Sequence[Way], steps: int, turns: int, progress: Progress) -> list[dict[str, Any]]:
    """All ways in turns, to and fro; a speed-up is taken within a turn. Seconds are those of the clock on the wall."""
    rates: dict[str, list[float]] = {way.name: [] for way in ways}
    for way in ways:
        way.run(max(1, steps // 10))
    for turn in range(turns):
        progress(f"{case}, turn {turn + 1} of {turns}")
        for way in ways if turn % 2 else reversed(ways):
            began = time.perf_counter()
            way.run(steps)
            rates[way.name].append(way.members * steps / (time.perf_counter() - began))
    rows = []
    for way in ways:
        ratios = [mine / one for mine, one in zip(rates[way.name], rates[way.over], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if turns > 1 else ratios * 3
        rows.append(
            {
                "case": case,
                "way": way.name,
                "gradients/s": round(statistics.median(rates[way.name])),
                "speed-up": round(middle, 3),
                "quartiles": "" if way.name == way.over else f"{low:.2f} to {high:.2f}",
                "over": "" if way.name == way.over else way.over,
                "turns": turns,
            }
        )
    return rows
