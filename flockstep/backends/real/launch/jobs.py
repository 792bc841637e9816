"""What a real node is started to do: train a workload with a strategy, or run the user's own function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from flockstep.backends.loop import place
from flockstep.backends.real.fabric import MakeFabric
from flockstep.backends.real.join.island_place import Processes
from flockstep.backends.real.join.joined import RealPlace, among
from flockstep.backends.real.recording import Recording
from flockstep.backends.real.training import TrainingNode
from flockstep.budget import Budget
from flockstep.elastic import Elastic
from flockstep.errors import located
from flockstep.node import OptimizerFactory
from flockstep.strategy import Strategy, describe, is_one_sided
from flockstep.timeline import Timeline
from flockstep.trace import NodeReport, Row, Trace
from flockstep.workloads.workload import Workload

OnRow = Callable[[Row], None]
"""Who is told of a record as soon as it is taken."""
Stop = Callable[[], bool]
"""Says whether to take no more steps; asked before each."""


@dataclass(frozen=True)
class Outcome:
    """What a node has to show at the end."""

    report: NodeReport
    rows: list[Row]
    model: Tensor
    result: Any = None
    timeline: Timeline | None = None


class Job(Protocol):
    """Everything nodes must know to run. ``make_fabric`` gives one a new connection with the others at each call."""

    @property
    def size(self) -> int:
        """How many nodes there are."""

    @property
    def columns(self) -> int:
        """How many processes each of them is."""

    @property
    def one_sided(self) -> bool:
        """Whether its nodes wait for each other nowhere."""

    @property
    def outlives_deaths(self) -> bool:
        """Whether it goes on when nodes die."""

    @property
    def timeout(self) -> float:
        """How long any wait may last."""

    @property
    def name(self) -> str:
        """What it is, in the words of a trace."""

    def run(
        self,
        rank: int,
        make_fabric: MakeFabric,
        on_row: OnRow | None,
        stop: Stop | None,
        processes: Processes | None = None,
    ) -> Outcome:
        """One node's whole life, on whichever thread or process this is; or that of one of its ``processes``."""


@dataclass(frozen=True, kw_only=True)
class TrainWorkload:
    """A strategy on a workload."""

    strategy: Strategy
    workload: Workload
    size: int
    steps: int | Budget
    optimizer: OptimizerFactory
    record_every: int
    seed: int
    timeout: float
    keeping: Recording = Recording()
    elastic: Elastic | None = None
    columns: int = 1

    @property
    def one_sided(self) -> bool:
        """The strategy knows."""
        return is_one_sided(self.strategy)

    @property
    def outlives_deaths(self) -> bool:
        """One-sided ones do, and elastic ones."""
        return self.one_sided or self.elastic is not None

    @property
    def name(self) -> str:
        """The strategy, as one would write it."""
        return describe(self.strategy)

    def run(
        self,
        rank: int,
        make_fabric: MakeFabric,
        on_row: OnRow | None,
        stop: Stop | None,
        processes: Processes | None = None,
    ) -> Outcome:
        """Run the strategy's program to its end."""
        node, fabric = None, make_fabric(is_one_sided(self.strategy), self.elastic)
        try:
            node = TrainingNode(
                fabric,
                rank,
                self.size,
                workload=self.workload.shard(rank, self.size),
                optimizer=self.optimizer,
                steps=self.steps,
                record_every=self.record_every,
                seed=self.seed,
                timeout=self.timeout,
                on_row=on_row,
                one_sided=is_one_sided(self.strategy),
                keeping=self.keeping,
                strategy=self.name,
                stop=stop,
            )
            node.train(self.strategy)
            node.finish()
        except Exception as raised:
            error = located(raised, rank, node.now if node else 0.0)
            fabric.fail(error)
            if node is not None:
                node.give_up(error)
            raise error from (None if error is raised else raised)
        finally:
            if node is not None:
                node.dismiss()
        return Outcome(node.tally, node.rows, node.params, timeline=node.kept_timeline())


@dataclass(frozen=True, kw_only=True)
class CallFunction:
    """The user's own function, which joins where it likes."""

    function: Callable[[], Any]
    size: int
    seed: int
    timeout: float
    keeping: Recording = Recording()
    elastic: Elastic | None = None
    columns: int = 1

    @property
    def one_sided(self) -> bool:
        """Nobody knows what a function joins with: one that dies ends all."""
        return False

    @property
    def outlives_deaths(self) -> bool:
        """Only where its joins are elastic."""
        return self.elastic is not None

    @property
    def name(self) -> str:
        """The function's name."""
        return describe(self.function)

    def run(
        self,
        rank: int,
        make_fabric: MakeFabric,
        on_row: OnRow | None,
        stop: Stop | None,
        processes: Processes | None = None,
    ) -> Outcome:
        """Call the function in a place of its own."""
        seat = RealPlace(rank, self.size, self.seed, make_fabric, self.keeping, self.elastic)
        if processes is not None:
            seat = among(processes, seed=self.seed, keeping=self.keeping, elastic=self.elastic)
        before = place.set_current(seat)
        try:
            result = self.function()
        except Exception as raised:
            error = located(raised, rank, seat.last.now if seat.last else 0.0)
            raise error from (None if error is raised else raised)
        finally:
            place.set_current(before)
        if seat.last is None:
            return Outcome(NodeReport(rank), [], torch.empty(0), result)
        last = seat.last
        return Outcome(last.tally, last.rows, last.params.clone(), result, last.kept_timeline())


def assemble(job: Job, outcomes: dict[int, Outcome]) -> Trace:
    """One trace from what the nodes brought home."""
    outcomes = _by_node(outcomes, job.columns)
    ranks = sorted(outcomes)
    # Of all nodes the first records; in a one-sided run the first of those that live.
    rows = sorted((row for outcome in outcomes.values() for row in outcome.rows), key=lambda row: row.seconds)
    return Trace(
        job.name,
        rows if job.outlives_deaths else outcomes[ranks[0]].rows,
        [outcomes[rank].report for rank in ranks],
        {rank: outcomes[rank].model for rank in ranks},
        {rank: outcomes[rank].result for rank in ranks},
        timeline=Timeline.together(outcomes[rank].timeline for rank in ranks),
    )


def _by_node(outcomes: dict[int, Outcome], columns: int) -> dict[int, Outcome]:
    """One outcome a node: of an island that of its first process, with the bytes of all."""
    if columns == 1:
        return outcomes
    for process, outcome in outcomes.items():
        first = outcomes.get(process - process % columns)
        if first is not None and first is not outcome:
            first.report.bytes_sent += outcome.report.bytes_sent
            first.report.bytes_received += outcome.report.bytes_received
    return {process // columns: outcome for process, outcome in outcomes.items() if process % columns == 0}
