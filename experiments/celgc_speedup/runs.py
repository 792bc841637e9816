"""One run, until the gradients of the average model are small; and one learning rate, over several seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

import flockstep as fs
from experiments.celgc_speedup.wells import Wells

CHECK_EVERY = 4
"""Steps between looks at the average model, whatever the period."""
CLIP_AT = 5.0
"""gamma / eta in units of sigma: gradients longer than five times their noise are clipped."""


class Reached(fs.FlockstepError):
    """Ends a run whose question is answered."""


@dataclass(frozen=True)
class Run:
    """What one run came to."""

    steps: int | None
    """Steps per node until gradients were small; None: not within the limit, or diverged."""
    first: int | None
    """Steps until one gradient was small, be it by luck."""
    diverged: bool
    clipped: float
    """Share of the steps that were clipped."""
    bytes_sent: float
    """Bytes sent per node."""


@dataclass(frozen=True)
class Rate:
    """All seeds of one learning rate."""

    rate: float
    runs: Sequence[Run]

    @property
    def reached(self) -> list[int]:
        """Steps of the runs that reached the target, fewest first."""
        return sorted(run.steps for run in self.runs if run.steps is not None)

    @property
    def median(self) -> float | None:
        """The median over seeds; None where a seed never reached the target."""
        return statistics.median(self.reached) if len(self.reached) == len(self.runs) else None

    @property
    def clipped(self) -> float:
        """Share of clipped steps, averaged over seeds."""
        return statistics.mean(run.clipped for run in self.runs)

    @property
    def bytes_sent(self) -> float:
        """Bytes sent per node, averaged over seeds."""
        return statistics.mean(run.bytes_sent for run in self.runs)

    def by_first(self) -> Rate:
        """The same runs, measured by their first small gradient."""
        return Rate(self.rate, [replace(run, steps=run.first) for run in self.runs])


def celgc(problem: Wells, period: int, rate: float) -> fs.CELGC:
    """CELGC with the one rule for gamma."""
    return fs.CELGC(period=period, gamma=CLIP_AT * problem.sigma * rate)


def run(strategy: fs.Strategy, problem: Wells, *, nodes: int, rate: float, target: float, limit: int, seed: int) -> Run:
    """Train until the gradients of the average model are small, or for ``limit`` steps."""
    norms: list[float] = []

    def look(row: fs.Row) -> None:
        # The second half of the run so far, not the last norm alone: that one may be small by luck.
        norms.append(row.loss)
        latest = norms[len(norms) // 2 :]
        if sum(latest) / len(latest) <= target:
            raise Reached(f"at step {row.step}")

    end: fs.FlockstepError | None = None
    try:
        trace = fs.simulate(
            strategy,
            problem,
            nodes=nodes,
            steps=limit,
            optimizer=partial(torch.optim.SGD, lr=rate),
            record_every=CHECK_EVERY,
            seed=seed,
            on_row=look,
        )
    except (Reached, fs.Diverged) as error:
        end, trace = error, error.trace
    steps = trace.rows[-1].step if isinstance(end, Reached) else None
    first = next((row.step for row in trace.rows if row.loss <= target), None)
    taken = sum(node.steps for node in trace.nodes)
    clipped = sum(node.counts.get("clipped", 0) for node in trace.nodes)
    return Run(steps, first, isinstance(end, fs.Diverged), clipped / taken, trace.bytes_sent)


def best(rates: Sequence[Rate]) -> Rate | None:
    """The learning rate with the smallest median among those that reached the target with every seed."""
    sure = [(rate.median, -rate.rate, rate) for rate in rates if rate.median is not None]
    return min(sure, key=lambda candidate: candidate[:2])[2] if sure else None
