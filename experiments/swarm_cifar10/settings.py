"""Who is compared, on what, and how long."""

from __future__ import annotations

from dataclasses import dataclass, replace

import flockstep as fs
from flockstep.strategy import Strategy

SGD = "small-batch SGD"
"""One node: what the others are measured against."""
METHODS: dict[str, Strategy] = {
    SGD: fs.LocalSGD(period=1),
    "LocalSGD, period 4": fs.LocalSGD(period=4),
    "ADPSGD": fs.ADPSGD(),
    **{
        f"Swarm, H = {steps}, {bits} bits": fs.Swarm(
            local_steps=steps, codec=fs.Raw() if bits == 32 else fs.Modular(bits=bits)
        )
        for steps in (2, 4)
        for bits in (32, 10, 8)
    },
}
LENGTHS = (1.0, 1.4)
"""Asynchronous methods are given more passes in the paper, since passes cost them less time."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of it."""

    nodes: tuple[int, ...] = (8, 16)
    passes: float = 30.0
    batch: int = 64
    rate: float = 0.1
    images: int = 20_000
    tests: int = 4_000
    seeds: tuple[int, ...] = (0,)
    lengths: tuple[float, ...] = LENGTHS
    methods: tuple[str, ...] = tuple(METHODS)
    points: int = 10
    device: str = "cuda"
    workers: int = 4

    def quick(self) -> Size:
        """The same on next to nothing."""
        short = replace(self, nodes=(2,), passes=1.0, points=1, device="cpu", workers=1)
        return replace(short, batch=4, images=32, tests=20)


@dataclass(frozen=True)
class Job:
    """One training run."""

    method: str
    nodes: int
    passes: float
    seed: int
    size: Size

    @property
    def budget(self) -> fs.Budget:
        """All nodes together."""
        return fs.Budget(samples=round(self.passes * self.size.images), batch=self.size.batch)


def jobs(size: Size) -> list[Job]:
    """Every method on every number of nodes, at equal passes and at more."""
    return [
        Job(method, nodes, passes, seed, size)
        for seed in size.seeds
        for passes in (length * size.passes for length in size.lengths)
        for method in size.methods
        for nodes in ((1,) if method == SGD else size.nodes)
    ]
