"""What is to be simulated, whichever way and however often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flockstep import check, units
from flockstep.backends.sim.cluster.compute import Compute
from flockstep.backends.sim.cluster.network import Network
from flockstep.budget import Budget
from flockstep.elastic import Elastic
from flockstep.faults import Fault, named
from flockstep.node import OptimizerFactory
from flockstep.strategy import Strategy
from flockstep.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Job:
    """The arguments of ``simulate`` but the seed, checked."""

    program: Strategy | Callable[[], Any]
    workload: Workload | None
    nodes: int
    steps: int | Budget
    optimizer: OptimizerFactory
    network: Network | None
    compute: Compute | None
    faults: Sequence[Fault]
    start_skew: str | float | None
    record_every: int | None
    timeout: str | float
    timeline: bool = False
    elastic: Elastic | None = None

    def __post_init__(self) -> None:
        check.whole("simulate", "nodes", self.nodes)
        if not isinstance(self.steps, Budget):
            check.whole("simulate", "steps", self.steps)
        if self.record_every is not None:
            check.whole("simulate", "record_every", self.record_every)
        units.seconds(self.timeout, "simulate.timeout")
        units.seconds(0.0 if self.start_skew is None else self.start_skew, "simulate.start_skew")
        for fault in self.faults:
            check.ranks("simulate", "faults", dict.fromkeys(named(fault)), self.nodes)
        if not self.is_function:
            check.has("simulate", "strategy", self.program, "run", kind="a strategy such as LocalSGD(period=8)")
            check.has("simulate", "workload", self.workload, "start", "gradient", "loss", "shard", kind="a workload")

    @property
    def is_function(self) -> bool:
        """Whether it is a function of the user's own, not a strategy on a workload."""
        return self.workload is None and callable(self.program) and not hasattr(self.program, "run")

    @property
    def every(self) -> int:
        """How many steps lie between two records."""
        each = self.steps.steps_of_each(self.nodes) if isinstance(self.steps, Budget) else self.steps
        return max(1, each // 20) if self.record_every is None else self.record_every

    @property
    def skew(self) -> float:
        """Seconds over which nodes start: those of a gradient, unless given."""
        if self.start_skew is not None:
            return units.seconds(self.start_skew)
        return units.seconds(self.compute.step) if self.compute is not None else 0.0
