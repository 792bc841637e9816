"""``flockstep demo``: six programs, each on real processes and on virtual nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

import flockstep as fs
from flockstep import units
from flockstep.cli.support import consoles, options, report, summary
from flockstep.cli.support.progress import Plan, Watch
from flockstep.compare.folder import Outcome, Record, Results
from flockstep.compare.plan import versions
from flockstep.exports.picture import plot
from flockstep.node import OptimizerFactory
from flockstep.trace import Row
from flockstep.workloads.language import CharLSTM

_REAL_NODES = 2
_ROWS = 20


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much to do, and how.

    The learning rate (of 0.01, 0.02 and 0.04) is the baseline's best on 2 nodes, and taken over for the others.
    SClipEF's thresholds stand still: with the schedule of its paper, which is for convex problems, its steps fade away
    on a net like this one (docs/sclip.md).
    """

    virtual_nodes: int
    steps: int
    duration: str
    batch: int = 8
    learning_rate: float = 0.02
    bandwidth: str = "100 Mbit/s"
    latency: str = "5 ms"

    @property
    def strategies(self) -> tuple[fs.Strategy, ...]:
        """The baseline first, then the five."""
        still = fs.clips.SmoothClip(c_phi=0.1, tau=0.01, phi_power=0.0, eps_power=0.0)
        return (
            fs.DataParallel(),
            fs.CELGC(period=8),
            # In 16 bits: what codes in 8 takes longer to be loaded than so short a run.
            fs.Swarm(period=4, codec=fs.codecs.Cast()),
            fs.DPSGD(period=8),
            fs.SClipEF(clip=still, eta_power=0.0),
            fs.HPSGD(period=8),
        )

    @property
    def optimizer(self) -> OptimizerFactory:
        """The same everywhere."""
        return partial(torch.optim.AdamW, lr=self.learning_rate)

    @property
    def record_every(self) -> int:
        """Steps between losses, the same everywhere."""
        return max(1, self.steps // _ROWS)

    @property
    def places(self) -> tuple[str, str]:
        """Where it runs, in words."""
        return f"{_REAL_NODES} real processes", f"{self.virtual_nodes} virtual nodes"


HELP = """Train a small LSTM on 2 real processes and on 8 virtual nodes, six ways.

Once with DataParallel, which averages gradients at every step and is what
one would take otherwise, and once with each of CELGC, Swarm, DPSGD, SClipEF
and HPSGD. The text it learns from, Shakespeare, is part of the package: no
files and no network are needed. Ends with a table, what one sees in words, a
picture, and a report of the virtual part: one HTML file, with what every
node did when.
"""

Quick = Annotated[bool, typer.Option("--quick", help="Half a minute: too short to learn much.")]

FULL = Scale(virtual_nodes=8, steps=100, duration="one to three minutes")
QUICK = Scale(virtual_nodes=4, steps=40, duration="about half a minute")


def demo(quick: Quick = False, out: options.Out = options.OUT, debug: options.Debug = False) -> None:
    """Six strategies, for real and in virtual time."""
    with consoles.plain_errors(debug=debug):
        scale = QUICK if quick else FULL
        # The model is small: more threads would only wait for each other.
        torch.set_num_threads(1)
        out.mkdir(parents=True, exist_ok=True)
        _announce(scale)
        runs = _run_all(scale)
        _tell(scale, runs, out)


def _announce(scale: Scale) -> None:
    names = ", ".join(type(strategy).__name__ for strategy in scale.strategies)
    consoles.messages().print(
        f"Trains a character LSTM on Shakespeare in {len(scale.strategies)} ways ({names}), {scale.steps} steps each: "
        f"first on {scale.places[0]} of this machine, then the same programs on {scale.places[1]} with "
        f"{scale.bandwidth} links, in virtual time. This takes {scale.duration}.\n",
        markup=False,
    )


def _run_all(scale: Scale) -> list[report.Run]:
    workload = CharLSTM(batch=scale.batch)
    names = [type(strategy).__name__ for strategy in scale.strategies]
    plans = [
        Plan(f"{place}, {name}", scale.steps, gradients_per_step)
        for place, gradients_per_step in zip(scale.places, (1, scale.virtual_nodes), strict=True)
        for name in names
    ]
    with Watch(consoles.messages(), plans) as watch:
        real = [
            _run_real(scale, workload, strategy, watch.follow(index)) for index, strategy in enumerate(scale.strategies)
        ]
        compute = fs.Compute(step=seconds_per_gradient(real))
        virtual = [
            _run_virtual(scale, workload, strategy, compute, watch.follow(len(real) + index))
            for index, strategy in enumerate(scale.strategies)
        ]
    here, there = scale.places
    return [*(report.Run(here, trace) for trace in real), *(report.Run(there, trace) for trace in virtual)]


def _run_real(scale: Scale, workload: fs.Workload, strategy: fs.Strategy, on_row: Callable[[Row], None]) -> fs.Trace:
    return fs.launch(
        strategy,
        workload,
        nodes=_REAL_NODES,
        steps=scale.steps,
        optimizer=scale.optimizer,
        record_every=scale.record_every,
        on_row=on_row,
    )


def _run_virtual(
    scale: Scale, workload: fs.Workload, strategy: fs.Strategy, compute: fs.Compute, on_row: Callable[[Row], None]
) -> fs.Trace:
    return fs.simulate(
        strategy,
        workload,
        nodes=scale.virtual_nodes,
        steps=scale.steps,
        optimizer=scale.optimizer,
        network=fs.Network(bandwidth=scale.bandwidth, latency=scale.latency),
        compute=compute,
        record_every=scale.record_every,
        on_row=on_row,
        timeline=True,
    )


def seconds_per_gradient(traces: Sequence[fs.Trace]) -> float:
    """What a gradient and its step took on real nodes, on average."""
    nodes = [node for trace in traces for node in trace.nodes]
    return sum(node.computing for node in nodes) / sum(node.gradients for node in nodes)


def _tell(scale: Scale, runs: Sequence[report.Run], out: Path) -> None:
    # Plots are drawn by a library that takes its time to import.
    from flockstep.compare import report as pages

    console = consoles.results()
    traces = [run.trace for run in runs]
    names = [summary.name(trace) for trace in traces]
    real, virtual = traces[: len(traces) // 2], traces[len(traces) // 2 :]
    step = units.show_seconds(seconds_per_gradient(real))
    console.print(report.table(runs, title="The same programs, for real and in virtual time", details=False, race=True))
    console.print(
        f"All step with AdamW at learning rate {scale.learning_rate:g} and see the same batches: "
        f"{'; '.join(trace.strategy for trace in real)}. A gradient took {step} on the real processes, whose links are "
        "this machine's memory, and takes as long on virtual nodes, whose links have "
        f"{scale.bandwidth} and {scale.latency} latency.\n",
        markup=False,
    )
    for place, group in zip(scale.places, (real, virtual), strict=True):
        console.print(f"{summary.race(place, group)} {summary.costs(group)}\n", markup=False)
    title = f"A character LSTM on Shakespeare, {scale.steps} steps on every node: validation loss"
    picture = plot(traces, out / "demo.png", labels=names, groups=[run.where for run in runs], title=title)
    rows = report.write_rows(runs, out / "demo.csv")
    page = pages.write(_results(scale, virtual, step), out)
    files = f"Picture: {picture}\nRows:    {rows}\nReport:  {page}, of the virtual nodes; open it in a browser"
    console.print(files, markup=False, soft_wrap=True)


def _results(scale: Scale, traces: Sequence[fs.Trace], step: str) -> Results:
    """The virtual part as a comparison."""
    plan = Record(
        command="flockstep demo",
        versions=versions(),
        workload=f"shakespeare(batch={scale.batch})",
        cluster={
            "nodes": scale.virtual_nodes,
            "link": scale.bandwidth,
            "latency": scale.latency,
            "step": step,
            "spread": 0.0,
            "stragglers": [],
            "faults": [],
        },
        strategies=[trace.strategy for trace in traces],
        labels=[summary.name(trace) for trace in traces],
        optimizers=[f"AdamW(lr={scale.learning_rate:g})" for _ in traces],
        seeds=[0],
        steps=scale.steps,
        samples_per_step=scale.virtual_nodes * scale.batch,
        samples="samples",
        real=False,
        target=None,
    )
    return Results(plan, [[Outcome(0, trace, None)] for trace in traces])
