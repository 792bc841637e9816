"""Who is compared, over which links, and how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

import flockstep as fs
from flockstep.strategy import Strategy
from flockstep.workloads.convex import Quadratics

NODES = 4
METHODS: dict[str, Strategy] = {
    "DataParallel": fs.DataParallel(),
    "LocalSGD, period 8": fs.LocalSGD(period=8),
    "DiLoCo, period 16": fs.DiLoCo(period=16),
    "CoCoD, period 8": fs.CoCoD(period=8),
    "HPSGD": fs.HPSGD(),
    "HPSGD, outer_lr 0.5": fs.HPSGD(outer_lr=0.5),
}
LINKS = ("1 Gbit/s", "100 Mbit/s", "20 Mbit/s")
COMPUTE = fs.Compute(step="20 ms", spread=0.1)
PARAMETERS = 274_042
"""Of ResNet-20 with its statistics, and what fills the gaps between tensors: how much travels."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of it."""

    seconds: float = 60.0
    """Virtual wall time of every run."""
    batch: int = 32
    rate: float = 0.1
    images: int = 20_000
    tests: int = 4_000
    points: int = 10
    seed: int = 0
    device: str = "cuda"
    workers: int = 9

    def quick(self) -> Size:
        """The same on next to nothing."""
        return replace(self, seconds=0.12, batch=4, images=64, tests=50, points=1, device="cpu", workers=1)


@dataclass(frozen=True)
class Job:
    """One run."""

    method: str
    link: str
    size: Size

    @property
    def network(self) -> fs.Network:
        """Its links."""
        return fs.Network(bandwidth=self.link, latency="1 ms")


def jobs(size: Size) -> list[Job]:
    """Every method over every link."""
    return [Job(method, link, size) for link in LINKS for method in METHODS]


def steps_in_time(job: Job) -> int:
    """How many steps fit into the wall time: virtual time depends on bytes and not on numbers, so any model will do."""

    def seconds(steps: int) -> float:
        return fs.simulate(
            METHODS[job.method],
            Quadratics(dim=PARAMETERS, noise=0.0),
            nodes=NODES,
            steps=steps,
            optimizer=partial(torch.optim.SGD, lr=0.0),
            network=job.network,
            compute=COMPUTE,
            record_every=steps,
            seed=job.size.seed,
        ).seconds

    # As many as the longest period at least, so that what happens once a period is in it.
    tried = 64 if job.size.seconds > 1 else 16
    return max(4, round(tried * job.size.seconds / seconds(tried)))
