"""Who is compared, over which links, and how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

import flockstep as fs
from flockstep.strategy import Strategy
from flockstep.units import bytes_per_second
from flockstep.workloads.convex import Quadratics

NODES = 4
METHODS: dict[str, Strategy] = {
    "DataParallel": fs.DataParallel(),
    "LocalSGD, period 8": fs.LocalSGD(period=8),
    "DiLoCo, period 16": fs.DiLoCo(period=16, outer_lr=0.7, outer_momentum=0.9),
    "CoCoD, period 8": fs.CoCoD(period=8),
    # As the paper has it.
    "HPSGD": fs.HPSGD(pull=1),
    "HPSGD, outer_lr 0.5": fs.HPSGD(pull=1, outer_lr=0.5),
    "HPSGD, k at most 8": fs.HPSGD(pull=1, max_period=8),
}
LINKS = ("1 Gbit/s", "100 Mbit/s", "20 Mbit/s")
LATENCY = "1 ms"
COMPUTE = fs.Compute(step="20 ms", spread=0.1)
_TRIES, _NEAR, _SMALL = 6, 0.01, 2000
PARAMETERS = 274_042
"""Of ResNet-20 with its statistics, and what fills the gaps between tensors: how much travels."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of it."""

    seconds: float = 60.0
    """Virtual wall time of every run."""
    links: tuple[str, ...] = LINKS
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
        short = replace(self, seconds=0.06, points=1, links=LINKS[-1:], device="cpu", workers=1)
        return replace(short, batch=4, images=32, tests=20)


@dataclass(frozen=True)
class Job:
    """One run."""

    method: str
    link: str
    size: Size

    @property
    def network(self) -> fs.Network:
        """Its links."""
        return fs.Network(bandwidth=self.link, latency=LATENCY)


def jobs(size: Size) -> list[Job]:
    """Every method over every link."""
    return [Job(method, link, size) for link in size.links for method in METHODS]


def steps_in_time(job: Job) -> int:
    """How many steps fit into the wall time.

    Virtual time depends on bytes and not on numbers: any model will do, and a small one over a link that is slower by
    as much.
    """
    network = fs.Network(bandwidth=f"{bytes_per_second(job.link) * _SMALL / PARAMETERS} B/s", latency=LATENCY)

    def seconds(steps: int) -> float:
        return fs.simulate(
            METHODS[job.method],
            Quadratics(dim=_SMALL, noise=0.0),
            nodes=NODES,
            steps=steps,
            optimizer=partial(torch.optim.SGD, lr=0.0),
            network=network,
            compute=COMPUTE,
            record_every=steps,
            seed=job.size.seed,
        ).seconds

    # What comes once a period, or takes a while to settle, counts more in a short run than in a long one: try again
    # with what the last try says, until it says the same.
    steps = 64 if job.size.seconds > 1 else 16
    for _ in range(_TRIES):
        took = seconds(steps)
        if abs(took - job.size.seconds) <= _NEAR * job.size.seconds:
            break
        steps = max(4, round(steps * job.size.seconds / took))
    return steps
