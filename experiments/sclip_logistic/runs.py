"""One method at one learning rate with all its seeds, and the best of several rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import flockstep as fs
from experiments.sclip_logistic.data import SOURCES, Judged
from experiments.sclip_logistic.methods import method
from flockstep.workloads.noises import StudentT
from flockstep.workloads.noisy import Noisy

NODES = 10
DF = 1.5


@dataclass(frozen=True)
class Result:
    """What the average model came to."""

    data: str
    method: str
    rate: float
    steps: list[int]
    losses: NDArray[np.float64]
    """(moments, seeds): on the test rows."""
    training: list[float]
    """Training loss at the end, for each seed."""
    accuracies: list[float]
    """On the test rows at the end, for each seed."""
    spread: float
    """Mean squared distance of the nodes from their average at the end, over seeds."""

    @property
    def score(self) -> float:
        """The mean training loss at the end."""
        return float(np.mean(self.training))


def measure(data: str, name: str, rate: float, problem: Judged, *, seeds: int, rounds: int, every: int) -> Result:
    """Run all seeds at once."""
    scale = SOURCES[data].scale
    strategy, optimizer = method(name, rate, scale)
    traces = fs.simulate_seeds(
        strategy,
        Noisy(workload=problem, noise=StudentT(df=DF), scale=scale),
        seeds=range(seeds),
        nodes=NODES,
        steps=rounds,
        optimizer=optimizer,
        record_every=every,
    )
    models = [trace.model for trace in traces]
    return Result(
        data,
        name,
        rate,
        [row.step for row in traces[0].rows],
        np.array([[row.loss for row in trace.rows] for trace in traces]).T,
        [problem.training_loss(model) for model in models],
        [problem.test_accuracy(model) for model in models],
        float(np.mean([trace.rows[-1].spread for trace in traces])),
    )


def best(results: Sequence[Result]) -> Result:
    """The rate with the least training loss at the end, averaged over seeds."""
    return min(results, key=lambda result: result.score)
