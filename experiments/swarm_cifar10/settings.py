"""Who is compared, on what, and how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import flockstep as fs
from flockstep.strategy import Strategy

SGD = "small-batch SGD"
"""One node: what the others are measured against."""


class Method(NamedTuple):
    """A strategy, and the network it runs on."""

    strategy: Strategy
    network: fs.Network = fs.Network(bandwidth="1 Gbit/s", latency="1 ms")


def _swarm(steps: int, bits: int, *, merge_every_step: bool = True) -> fs.Swarm:
    codec = fs.codecs.Raw() if bits == 32 else fs.codecs.Modular(bits=bits)
    return fs.Swarm(period=steps, codec=codec, merge_every_step=merge_every_step)


YARDSTICK = "LocalSGD, period 4"
DEFAULT = "Swarm, H = 1, 8 bits"
METHODS: dict[str, Method] = {
    SGD: Method(fs.LocalSGD(period=1)),
    YARDSTICK: Method(fs.LocalSGD(period=4)),
    "LocalSGD, period 16": Method(fs.LocalSGD(period=16)),
    **{f"Swarm, H = {steps}, {bits} bits": Method(_swarm(steps, bits)) for steps in (1, 2, 4) for bits in (32, 8)},
    # What is it that costs accuracy? The network's time, merging late, or pairs that do not wait for each other?
    "Swarm, H = 1, 32 bits, free network": Method(_swarm(1, 32), fs.Network(bandwidth="1000 Gbit/s", latency="1 us")),
    **{f"Swarm, H = {k}, 8 bits, merged late": Method(_swarm(k, 8, merge_every_step=False)) for k in (2, 4)},
    **{f"SwarmPairs, H = {steps}": Method(fs.SwarmPairs(period=steps)) for steps in (1, 2, 4)},
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
        return replace(short, batch=4, images=16, tests=8)


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
