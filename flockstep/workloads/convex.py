"""Small problems whose answers are known: quadratics, quartics and logistic regression."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flockstep import check
from flockstep.workloads.datasets import read_libsvm
from flockstep.workloads.labelled import libsvm_file, signed_rows
from flockstep.workloads.sharding import check_place, deal
from flockstep.workloads.stacked_workload import StackedLogistic, StackedQuadratics, StackedQuartics
from flockstep.workloads.workload import Stacked

Vector = NDArray[np.float64]
_NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True, kw_only=True)
class Quadratics:
    """Node i minimises f_i(x) = 1/2 sum_k a_ik (x_k - b_ik)^2, from gradients with Gaussian noise.

    Curvatures a are random in [1/condition, 1], centres b are Gaussian. At heterogeneity 0 all nodes have
    the same f; at 1 they share no more than the mean of their centres. Each number of nodes is a problem
    of its own, and as it comes it is the problem of one node: ask a shard for the loss of a run.
    """

    dim: int = 64
    heterogeneity: float = 1.0
    noise: float = 1.0
    condition: float = 10.0
    dtype: torch.dtype = torch.float32
    seed: int = 0
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        check.whole(self, "dim", self.dim)
        check.fraction(self, "heterogeneity", self.heterogeneity)
        check.not_negative(self, "noise", self.noise)
        if check.real(self, "condition", self.condition) < 1:
            raise ValueError(f"Quadratics.condition must be at least 1, got {self.condition}")
        check.one_of(self, "dtype", self.dtype, _NUMPY)
        check.whole(self, "seed", self.seed, at_least=0)
        check_place(self, self.rank, self.size)

    @cached_property
    def curvature(self) -> NDArray[Any]:
        """The diagonal of this node's Hessian, in the workload's dtype."""
        return _node_terms(self, self.rank)[0].astype(_NUMPY[self.dtype])

    @cached_property
    def centre(self) -> NDArray[Any]:
        """The minimum of this node's own f, in the workload's dtype."""
        return _node_terms(self, self.rank)[1].astype(_NUMPY[self.dtype])

    def start(self) -> Tensor:
        """Zeros."""
        return torch.zeros(self.dim, dtype=self.dtype)

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """``a (x - b) + noise * rng.standard_normal(dim)``, drawn in the workload's dtype."""
        # NumPy's overhead per call is below torch's, and vectors here are short.
        g: NDArray[Any] = self.curvature * (x.detach().numpy() - self.centre)
        if self.noise:
            g += self.noise * rng.standard_normal(self.dim, dtype=g.dtype.type)
        return torch.from_numpy(g)

    def loss(self, x: Tensor) -> float:
        """The mean of all nodes' f at ``x``, without noise."""
        curvature, optimum, least = _whole_terms(replace(self, rank=0))
        # A diverged x has an infinite loss, which is for the caller to report.
        with np.errstate(all="ignore"):
            away = x.detach().numpy() - optimum
            return least + 0.5 * float(curvature @ (away * away))

    def optimum(self) -> Tensor:
        """Where the mean of all nodes' f is least."""
        return torch.from_numpy(_whole_terms(replace(self, rank=0))[1]).to(self.dtype, copy=True)

    def shard(self, rank: int, size: int) -> Quadratics:
        """The f of node ``rank`` in the problem of ``size`` nodes."""
        return replace(self, rank=rank, size=size)

    def stack(self, size: int) -> Stacked:
        """All nodes' f side by side."""
        a, b = zip(*(_node_terms(self, rank) for rank in range(size)), strict=True)
        dtype = _NUMPY[self.dtype]
        return StackedQuadratics(curvatures=np.array([a], dtype), centres=np.array([b], dtype), noise=self.noise)


def _node_terms(problem: Quadratics, rank: int) -> tuple[Vector, Vector]:
    shared, own = (np.random.default_rng([problem.seed, who, 0, 1]) for who in (0, rank + 1))
    h = problem.heterogeneity
    exponent = (1 - h) * shared.random(problem.dim) + h * own.random(problem.dim)
    centre = shared.standard_normal(problem.dim) + h * own.standard_normal(problem.dim)
    return problem.condition**-exponent, centre


@lru_cache(maxsize=8)
def _whole_terms(problem: Quadratics) -> tuple[Vector, Vector, float]:
    """The mean of all nodes' f as one quadratic: its curvature, its minimum, and its value there."""
    curvature, pull, constant = np.zeros(problem.dim), np.zeros(problem.dim), np.zeros(problem.dim)
    for rank in range(problem.size):
        a, b = _node_terms(problem, rank)
        curvature += a / problem.size
        pull += a * b / problem.size
        constant += a * b * b / problem.size
    optimum = pull / curvature
    return curvature, optimum, 0.5 * float(np.sum(constant - pull * optimum))


@dataclass(frozen=True, kw_only=True)
class Quartics:
    """Scalar quartics of EPISODE (Crawshaw, Bao, Liu 2023), where clipping by each node's own norm is biased.

        f_i(x) = x^4 - 3 x^3 - H h_i x^2 + x,   h = -1, 2, -1, 2, ...

    Training starts at x0. The derivative has noise, uniform between -noise and noise. A single node has the
    mean of the first two.
    """

    H: float = 4.0
    noise: float = 1.0
    x0: float = 1.0
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        check.not_negative(self, "H", self.H)
        check.not_negative(self, "noise", self.noise)
        check.real(self, "x0", self.x0)
        check_place(self, self.rank, self.size)

    def start(self) -> Tensor:
        """The one number ``x0``."""
        return torch.tensor([self.x0], dtype=torch.float64)

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """``f_i'(x) + noise * rng.uniform(-1, 1)``."""
        at = x.item()
        # Not at**3: a power raises where a product of a diverged x becomes infinite.
        slope = ((4 * at - 9) * at - self._bend) * at + 1
        return torch.tensor([slope + self.noise * rng.uniform(-1, 1)], dtype=torch.float64)

    def loss(self, x: Tensor) -> float:
        """How far the mean of all nodes' f lies above its least value."""
        return self._mean(x.item()) - self._least

    def shard(self, rank: int, size: int) -> Quartics:
        """The f of node ``rank`` in the problem of ``size`` nodes."""
        return replace(self, rank=rank, size=size)

    def stack(self, size: int) -> Stacked:
        """All nodes' f side by side."""
        bends = [[self.shard(rank, size)._bend] for rank in range(size)]
        return StackedQuartics(bends=np.array([bends]), noise=self.noise)

    @cached_property
    def _bend(self) -> float:
        return 2 * self.H * (0.5 if self.size == 1 else (-1.0, 2.0)[self.rank % 2])

    @cached_property
    def _mean_h(self) -> float:
        odd = self.size // 2
        return 0.5 if self.size == 1 else (2.0 * odd - (self.size - odd)) / self.size

    def _mean(self, at: float) -> float:
        return (((at - 3) * at - self.H * self._mean_h) * at + 1) * at

    @cached_property
    def _least(self) -> float:
        # Complex roots need no sorting out: f at their real part is no less than the minimum.
        return min(self._mean(float(root.real)) for root in np.roots([4, -9, -2 * self.H * self._mean_h, 1]))


class Logistic:
    """Logistic regression: mean_j log(1 + exp(-y_j (w'a_j + c))) + l2/2 ||x||^2; x is w, then the bias c.

    The data is the name of a file in the data folder ``libsvm``, a path to a LIBSVM file, or a pair of
    features and labels (-1 or +1). Batches are drawn with replacement. A node's rows are random at
    heterogeneity 0, and sorted by label at 1.
    """

    def __init__(
        self,
        *,
        data: str | Path | tuple[ArrayLike, ArrayLike] = "a9a",
        batch: int = 32,
        l2: float = 1e-4,
        heterogeneity: float = 0.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._batch = check.whole(self, "batch", batch)
        self._l2 = check.not_negative(self, "l2", l2)
        self._heterogeneity = check.fraction(self, "heterogeneity", heterogeneity)
        self._seed = check.whole(self, "seed", seed, at_least=0)
        check.one_of(self, "dtype", dtype, _NUMPY)
        features, labels = data if isinstance(data, tuple) else read_libsvm(libsvm_file("Logistic", data))
        self._labels, signed = signed_rows(features, labels, _NUMPY[dtype])
        self._signed = torch.from_numpy(signed)
        """Each row times its label: a positive product with x is a right answer."""
        self._rows = np.arange(len(signed))

    def start(self) -> Tensor:
        """Zeros: every answer is a coin toss."""
        return torch.zeros(self._signed.shape[1], dtype=self._signed.dtype)

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """The gradient on ``batch`` rows of this shard."""
        x = x.detach()
        drawn = self._rows[rng.integers(len(self._rows), size=self._batch)]
        rows = self._signed.index_select(0, torch.from_numpy(drawn))
        wrong = torch.sigmoid(-(rows @ x))
        return torch.addmv(x, rows.T, wrong, beta=self._l2, alpha=-1 / self._batch)

    def loss(self, x: Tensor) -> float:
        """The regularised loss over all rows of all nodes."""
        x = x.detach()
        fit = -torch.nn.functional.logsigmoid(self._signed @ x).mean(dtype=torch.float64)
        return float(fit) + 0.5 * self._l2 * float(x.double() @ x.double())

    def accuracy(self, x: Tensor) -> float:
        """The fraction of all rows, of all nodes, that ``x`` puts on the right side."""
        return float((self._signed @ x.detach() > 0).double().mean())

    def shard(self, rank: int, size: int) -> Logistic:
        """The rows of node ``rank``; the data itself is shared, not copied."""
        part = copy.copy(self)
        mixture, seed = self._heterogeneity, self._seed
        part._rows = deal(len(self._labels), rank, size, heterogeneity=mixture, seed=seed, order=self._labels)
        return part

    def stack(self, size: int) -> Stacked:
        """All nodes' rows side by side; the data itself is shared, not copied."""
        rows = tuple(self.shard(rank, size)._rows for rank in range(size))
        return StackedLogistic(signed=self._signed, rows=rows, batch=self._batch, l2=self._l2)
