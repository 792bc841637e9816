"""Any workload, with noise of your choice on its gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flockstep import check
from flockstep.workloads.noises import Noise, StudentT
from flockstep.workloads.workload import Stacked, Workload, stacked


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """``scale * noise`` added to every gradient of ``workload``; whatever else that has, this has too.

    The noise comes from the stream that draws the batches, after them. It is drawn at scale 0 as well, so that runs
    which differ in their scale differ in nothing else.
    """

    workload: Workload
    noise: Noise = StudentT(df=1.5)
    scale: float = 1.0

    def __post_init__(self) -> None:
        check.has(self, "workload", self.workload, "start", "gradient", "loss", "shard", kind="a workload")
        check.has(self, "noise", self.noise, "draw", kind="a noise such as StudentT(df=1.5)")
        check.not_negative(self, "scale", self.scale)

    def start(self) -> Tensor:
        """Where the workload starts."""
        return self.workload.start()

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """The workload's gradient and the noise, in the gradient's dtype and on its device."""
        g = self.workload.gradient(x, rng)
        # Torch, because it adds float64 to whatever g is, and says nothing where a number has become infinite.
        return g.add_(torch.from_numpy(self.scale * self.noise.draw(rng, 1, len(g))[0]).to(g.device))

    def loss(self, x: Tensor) -> float:
        """The workload's loss, without noise."""
        return self.workload.loss(x)

    def shard(self, rank: int, size: int) -> Noisy:
        """A node's part of the workload, with noise of its own."""
        return replace(self, workload=self.workload.shard(rank, size))

    def stack(self, size: int) -> Stacked | None:
        """All nodes side by side; None where the workload cannot do that."""
        inner = stacked(self.workload, size)
        return None if inner is None else StackedNoisy(inner=inner, noisy=self, dim=len(self.start()))

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling ask for private names, and ask before there is a workload that could answer.
        if name.startswith("_") or "workload" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.workload, name)


@dataclass(frozen=True, kw_only=True, eq=False)
class StackedNoisy:
    """What the workload draws, then the noise."""

    inner: Stacked
    noisy: Noisy
    dim: int

    def draw(self, rank: int, rng: np.random.Generator, steps: int) -> tuple[NDArray[Any], ...]:
        """The workload's draws and, last, the noise at its scale: step by step where both use the stream."""
        if self._inner_is_exact:
            return (self._draw_noise(rng, steps),)
        each = [(*self.inner.draw(rank, rng, 1), self._draw_noise(rng, 1)) for _ in range(steps)]
        return tuple(np.concatenate(parts) for parts in zip(*each, strict=True))

    def gradient(self, x: Tensor, drawn: tuple[NDArray[Any], ...]) -> Tensor:
        """The gradients of all nodes and their noise."""
        return self.inner.gradient(x, drawn[:-1]).add_(torch.from_numpy(drawn[-1]))

    @cached_property
    def _inner_is_exact(self) -> bool:
        return not self.inner.draw(0, np.random.default_rng(0), 1)

    def _draw_noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float64]:
        return self.noisy.scale * self.noisy.noise.draw(rng, steps, self.dim)
