"""Quadratics that no two nodes see along the same axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flockstep import check
from flockstep.workloads.sharding import check_place
from flockstep.workloads.stacked_workload import StackedRotated
from flockstep.workloads.workload import Stacked

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RotatedQuadratics:
    """Node i minimises f_i(x) = 1/2 (x - b_i)'A_i (x - b_i), from exact gradients: wrap it in ``Noisy`` for others.

        A_i = Q_i diag(least ... most) Q_i',   Q_i a random rotation,   b_i = offset * a Gaussian vector

    Its ``loss`` is the squared error ||x - x*||^2, x* where the mean of all f is least: what papers on heavy tails
    plot. Each number of nodes is a problem of its own, and as it comes it is the problem of one node. In float64.
    """

    dim: int = 10
    least: float = 1.0
    most: float = 5.0
    offset: float = 3.0
    seed: int = 0
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        check.whole(self, "dim", self.dim)
        check.positive(self, "least", self.least)
        if check.real(self, "most", self.most) < self.least:
            raise ValueError(f"RotatedQuadratics.most must not be below least {self.least}, got {self.most}")
        check.not_negative(self, "offset", self.offset)
        check.whole(self, "seed", self.seed, at_least=0)
        check_place(self, self.rank, self.size)

    @cached_property
    def hessian(self) -> Numbers:
        """This node's A."""
        return _node_terms(self, self.rank)[0]

    @cached_property
    def centre(self) -> Numbers:
        """This node's b: the minimum of its own f."""
        return _node_terms(self, self.rank)[1]

    @cached_property
    def pull(self) -> Numbers:
        """A b: minus the gradient at 0."""
        return self.hessian @ self.centre

    def start(self) -> Tensor:
        """Zeros."""
        return torch.zeros(self.dim, dtype=torch.float64)

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """``A x - A b``; draws nothing."""
        # A diverged x is for the caller to report.
        with np.errstate(all="ignore"):
            g: Numbers = self.hessian @ x.detach().numpy()
            g -= self.pull
        return torch.from_numpy(g)

    def loss(self, x: Tensor) -> float:
        """The squared distance of ``x`` from the optimum, not the height of f above its least value."""
        with np.errstate(all="ignore"):
            away = x.detach().numpy() - _optimum(replace(self, rank=0))
            return float(away @ away)

    def optimum(self) -> Tensor:
        """Where the mean of all nodes' f is least."""
        return torch.from_numpy(_optimum(replace(self, rank=0)).copy())

    def shard(self, rank: int, size: int) -> RotatedQuadratics:
        """The f of node ``rank`` in the problem of ``size`` nodes."""
        return replace(self, rank=rank, size=size)

    def stack(self, size: int) -> Stacked:
        """All nodes' f side by side."""
        shards = [self.shard(rank, size) for rank in range(size)]
        hessians, pulls = [shard.hessian for shard in shards], [shard.pull for shard in shards]
        return StackedRotated(hessians=np.array(hessians), pulls=np.array([pulls]))


def _node_terms(problem: RotatedQuadratics, rank: int) -> tuple[Numbers, Numbers]:
    # A fourth word, and one that no other workload has: see sharding.py.
    rng = np.random.default_rng([problem.seed, rank, 0, 3])
    q, r = np.linalg.qr(rng.standard_normal((problem.dim, problem.dim)))
    # QR leaves the signs open; a positive diagonal of R makes every rotation equally likely.
    q *= np.sign(np.diag(r))
    a = q * np.linspace(problem.least, problem.most, problem.dim) @ q.T
    # Symmetric to the last bit: a row is as good as a column.
    return (a + a.T) / 2, problem.offset * rng.standard_normal(problem.dim)


@lru_cache(maxsize=8)
def _optimum(problem: RotatedQuadratics) -> Numbers:
    a, b = zip(*(_node_terms(problem, rank) for rank in range(problem.size)), strict=True)
    return np.linalg.solve(np.sum(a, axis=0), np.sum([A @ centre for A, centre in zip(a, b, strict=True)], axis=0))
