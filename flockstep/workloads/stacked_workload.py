"""Small problems with all their nodes side by side: what ``stack`` of the convex workloads gives.

A gradient of one short vector is mostly the overhead of its calls. Here one call serves all nodes of many runs.
Vectors that a node has of its own are kept as (1, nodes, dim): NumPy is faster where no dimension is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Drawn = tuple[NDArray[Any], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class StackedQuadratics:
    """``a (x - b) + noise * n``, with a row of a and of b for each node."""

    curvatures: NDArray[Any]
    centres: NDArray[Any]
    noise: float

    def draw(self, rank: int, rng: np.random.Generator, steps: int) -> Drawn:
        """The Gaussian noise at its scale; nothing where there is none."""
        if not self.noise:
            return ()
        shape, dtype = (steps, self.centres.shape[-1]), self.centres.dtype.type
        return (self.noise * rng.standard_normal(shape, dtype=dtype),)

    def gradient(self, x: Tensor, drawn: Drawn) -> Tensor:
        """The gradients of all nodes."""
        g: NDArray[Any] = x.detach().numpy() - self.centres
        g *= self.curvatures
        for noise in drawn:
            g += noise
        return torch.from_numpy(g)


@dataclass(frozen=True, kw_only=True, eq=False)
class StackedQuartics:
    """``((4 x - 9) x - bend) x + 1``, with a bend for each node, and uniform noise."""

    bends: NDArray[np.float64]
    noise: float

    def draw(self, rank: int, rng: np.random.Generator, steps: int) -> Drawn:
        """The uniform noise at its scale; drawn also where that is zero, as for one node."""
        return (self.noise * rng.uniform(-1, 1, (steps, 1)),)

    def gradient(self, x: Tensor, drawn: Drawn) -> Tensor:
        """The derivatives of all nodes."""
        at = x.detach().numpy()
        g: NDArray[Any] = ((4 * at - 9) * at - self.bends) * at + 1
        g += drawn[0]
        return torch.from_numpy(g)


@dataclass(frozen=True, kw_only=True, eq=False)
class StackedLogistic:
    """Logistic regression, with the numbers of its rows for each node; nodes may differ in how many they have."""

    signed: Tensor
    rows: tuple[NDArray[np.int64], ...]
    batch: int
    l2: float

    def draw(self, rank: int, rng: np.random.Generator, steps: int) -> Drawn:
        """The batches, as numbers of rows of the whole data: a gradient need not know whose they are."""
        own = self.rows[rank]
        return (own[rng.integers(len(own), size=(steps, self.batch))],)

    def gradient(self, x: Tensor, drawn: Drawn) -> Tensor:
        """The gradients of all nodes, each on its batch."""
        flat = x.detach().reshape(-1, x.shape[-1], 1)
        rows = self.signed.index_select(0, torch.from_numpy(drawn[0]).reshape(-1))
        rows = rows.view(len(flat), self.batch, -1)
        wrong = torch.sigmoid_(torch.bmm(rows, flat).neg_())
        g = torch.baddbmm(flat, rows.mT, wrong, beta=self.l2, alpha=-1 / self.batch)
        return g.view(x.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class StackedRotated:
    """``A x - b``, with a symmetric matrix A, (nodes, dim, dim) in all, and a vector b for each node."""

    hessians: NDArray[np.float64]
    pulls: NDArray[np.float64]

    def draw(self, rank: int, rng: np.random.Generator, steps: int) -> Drawn:
        """Nothing: these gradients are exact."""
        return ()

    def gradient(self, x: Tensor, drawn: Drawn) -> Tensor:
        """The gradients of all nodes: for each node one product with all its runs as rows, and no copy before it."""
        at = x.detach().numpy()
        g = np.empty_like(at)
        np.matmul(at.swapaxes(0, 1), self.hessians, out=g.swapaxes(0, 1))
        g -= self.pulls
        return torch.from_numpy(g)
