"""A problem of the paper's class: not convex, (L0, L1)-smooth but not smooth, its gradient known exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flockstep import check

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Wells:
    """f(x) = sum_k a_k (cosh x_k - x_k^2): two wells per coordinate, and walls that steepen without bound.

    Scales a are spread evenly in the logarithm from 1/condition to 1. Gradients have Gaussian noise; every node
    has the same f. Every other coordinate starts up the ``wall``, where a step without a clip is thrown out, the
    rest so close to the ``ridge`` between the wells that noise can decide: nodes that never meet fall into
    different ones. The number training is about, and what a run records, is the norm of the exact gradient.
    """

    dim: int = 64
    condition: float = 2.0
    noise: float = 1.0
    wall: float = 8.0
    ridge: float = 0.15

    def __post_init__(self) -> None:
        check.whole(self, "dim", self.dim)
        check.positive(self, "condition", self.condition)
        check.not_negative(self, "noise", self.noise)
        check.real(self, "wall", self.wall)
        check.real(self, "ridge", self.ridge)

    @cached_property
    def scales(self) -> Vector:
        """The scale of each coordinate."""
        return np.logspace(-math.log10(self.condition), 0.0, self.dim)

    @property
    def sigma(self) -> float:
        """Root of the mean squared length of the noise of one gradient."""
        return self.noise * math.sqrt(self.dim)

    def start(self) -> Tensor:
        """Up the wall and near the ridge, in turns."""
        x = torch.full((self.dim,), self.wall, dtype=torch.float64)
        x[1::2] = self.ridge
        return x

    def slope(self, x: Tensor) -> Vector:
        """The exact gradient: ``a (sinh x - 2 x)``."""
        at = x.detach().numpy()
        # A diverged x has an infinite slope, which is for the caller to report.
        with np.errstate(all="ignore"):
            exact: Vector = self.scales * (np.sinh(at) - 2 * at)
        return exact

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """The exact gradient plus ``noise * rng.standard_normal(dim)``."""
        return torch.from_numpy(self.slope(x) + self.noise * rng.standard_normal(self.dim))

    def loss(self, x: Tensor) -> float:
        """The norm of the exact gradient."""
        return float(np.linalg.norm(self.slope(x)))

    def shard(self, rank: int, size: int) -> Wells:
        """The same for every node."""
        return self
