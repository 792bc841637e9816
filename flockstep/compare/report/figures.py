"""The numbers of a report: final losses, times to a target, bytes, and where the time went."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flockstep.compare.folder import Outcome, Results
from flockstep.timeline import KINDS
from flockstep.trace import NodeReport

# A run that got less of the way than this, next to the best, does not set the target for all.
_PROGRESS = 0.5


@dataclass(frozen=True)
class Summary:
    """One strategy over all its seeds: a line of the table."""

    index: int
    label: str
    strategy: str
    optimizer: str
    losses: list[float]
    """The last loss of each seed's run."""
    times: list[float | None]
    """Each seed's seconds to the target; None where it was not reached."""
    sent: float | None
    """Bytes sent per node, averaged over seeds."""
    shares: dict[str, float]
    """Shares of a node's time by kind, averaged over nodes and seeds."""
    failures: list[tuple[int, str]]
    """Seeds whose runs ended early, and why."""
    spreads: list[float]
    """Of each seed's run, at its end: the mean squared distance of the nodes' models from their average."""
    drifts: list[tuple[int, str]]
    """Seeds whose nodes drifted apart while the loss of their average fell, and how."""
    did_well: bool = True
    """Whether all its runs were whole and went at least half as far down as the best run of all."""
    speedup: float | None = None
    """How many times as fast as the yardstick the target was reached."""

    @property
    def loss(self) -> float | None:
        """The mean over seeds of the last loss; None where there is none or one is not finite."""
        return statistics.fmean(self.losses) if self.losses and all(map(math.isfinite, self.losses)) else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the last loss over seeds, with n - 1 below; None for fewer than two seeds."""
        return statistics.stdev(self.losses) if self.loss is not None and len(self.losses) > 1 else None

    @property
    def spread(self) -> float | None:
        """The median over seeds; None where nobody looked."""
        return statistics.median(self.spreads) if self.spreads else None

    @property
    def reached(self) -> list[float]:
        """The times of the seeds that reached the target."""
        return [time for time in self.times if time is not None]

    @property
    def time(self) -> float | None:
        """The median over seeds of the time to the target; None unless every seed reached it."""
        return statistics.median(self.reached) if self.times and None not in self.times else None


def summaries(results: Results, target: float | None) -> list[Summary]:
    """A line per strategy, in order."""
    lines = [_summary(results, index, target) for index in range(len(results.plan.strategies))]
    first = yardstick(lines)
    return [_with_speedup(line, first.time if first else None) for line in lines]


def yardstick(lines: Sequence[Summary]) -> Summary | None:
    """Whom the others are measured by: the first strategy, unless it did badly itself; then the first that did well."""
    return next((line for line in lines if line.did_well), lines[0] if lines else None)


def _summary(results: Results, index: int, target: float | None) -> Summary:
    plan, outcomes = results.plan, results.runs[index]
    reports = [node for outcome in outcomes for node in outcome.trace.nodes]
    return Summary(
        index=index,
        label=plan.labels[index],
        strategy=plan.strategies[index],
        optimizer=plan.optimizers[index],
        losses=[outcome.trace.loss for outcome in outcomes if outcome.trace.rows],
        times=[] if target is None else [outcome.trace.time_to(target) for outcome in outcomes],
        sent=statistics.fmean(outcome.trace.bytes_sent for outcome in outcomes) if outcomes else None,
        shares=shares(reports),
        failures=[(outcome.seed, outcome.failure) for outcome in outcomes if outcome.failure is not None],
        spreads=[outcome.trace.spread for outcome in outcomes if math.isfinite(outcome.trace.spread)],
        did_well=bool(outcomes) and all(_went_far(outcome, _furthest(results)) for outcome in outcomes),
        drifts=[(outcome.seed, outcome.trace.drift) for outcome in outcomes if outcome.trace.drift is not None],
    )


def _with_speedup(line: Summary, first: float | None) -> Summary:
    if not first or not line.time:
        return line
    return Summary(**{**vars(line), "speedup": first / line.time})


def shares(reports: Sequence[NodeReport]) -> dict[str, float]:
    """Computing, waiting and talking as shares of a node's own time, averaged over nodes."""
    timed = [report for report in reports if report.seconds > 0]
    return {kind: statistics.fmean(getattr(r, kind) / r.seconds for r in timed) if timed else 0.0 for kind in KINDS}


def target_of(results: Results) -> float | None:
    """The loss that times are measured to: the one asked for, else the lowest that all good runs reached.

    A good run is one that was not ended early and went at least half as far down as the best run.
    """
    if results.plan.target is not None:
        return results.plan.target
    most = _furthest(results)
    return max((run.trace.loss for line in results.runs for run in line if _went_far(run, most)), default=None)


def _furthest(results: Results) -> float:
    """How far down the best run of all went."""
    return max((_way_down(run) for line in results.runs for run in line if _whole(run)), default=0.0)


def _went_far(run: Outcome, furthest: float) -> bool:
    return _whole(run) and _way_down(run) >= _PROGRESS * furthest


def _way_down(run: Outcome) -> float:
    return run.trace.rows[0].loss - run.trace.loss


def _whole(run: Outcome) -> bool:
    return run.failure is None and bool(run.trace.rows) and math.isfinite(run.trace.loss)
