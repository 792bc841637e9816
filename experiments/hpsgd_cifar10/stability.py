"""Where HPSGD's merges swing: k against the learning rate on a quadratic, as seen and as the formula has it.

On curvature l, c = 1 - (1 - eta l)^k and, where replicas restart from W (pull=1, the paper's form),
W_{r+1} = W_r - outer_lr c W_{r-1}: a swing above outer_lr c = 1/4.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import flockstep as fs

_PERIODS = 24
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
RATES = tuple(round(0.01 * 1.35**i, 4) for i in range(15))


@dataclass(frozen=True)
class Bowl:
    """Half of x squared, from 1: curvature 1, no noise."""

    def start(self) -> Tensor:
        """One."""
        return torch.ones(1, dtype=torch.float64)

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """x itself."""
        return x.clone()

    def loss(self, x: Tensor) -> float:
        """Half its square."""
        return 0.5 * float(x.square().sum())

    def shard(self, rank: int, size: int) -> Bowl:
        """The same for all."""
        return self


def swings(k: int, rate: float) -> bool:
    """Whether the global model ever crosses the optimum."""
    seen: list[float] = []

    class Watched(Bowl):
        def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
            seen.append(float(x))
            return x.clone()

        def shard(self, rank: int, size: int) -> Bowl:
            return self

    fs.simulate(
        fs.HPSGD(period=k, pull=1),
        Watched(),
        nodes=1,
        steps=_PERIODS * k,
        optimizer=partial(torch.optim.SGD, lr=rate),
        record_every=_PERIODS * k,
    )
    # Where each period begins is the global model.
    return min(seen[::k]) < 0


def strength(k: float | NDArray[np.float64], rate: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """outer_lr c, by the formula, with an outer rate of 1."""
    return np.asarray(1 - (1 - np.asarray(rate)) ** k)


def grid() -> list[dict[str, float]]:
    """Every pair: whether it swings, and what the formula says."""
    rows = []
    for k in STEPS:
        for rate in RATES:
            with warnings.catch_warnings():
                # It warns of what is to be seen here.
                warnings.simplefilter("ignore")
                seen = swings(k, rate)
            rows.append({"k": k, "rate": rate, "swings": int(seen), "outer_lr c": round(float(strength(k, rate)), 4)})
    return rows
