"""``flockstep simulate``: strategies side by side on virtual nodes and a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import typer

import flockstep as fs
from flockstep import check
from flockstep.cli.support import consoles, options, report
from flockstep.cli.support.progress import Plan, Watch
from flockstep.exports.picture import plot
from flockstep.faults import Fault
from flockstep.node import OptimizerFactory
from flockstep.strategy import describe
from flockstep.texts import fault_texts, parse
from flockstep.texts.optimizer_texts import OptimizerName

# Losses recorded along a run: enough for a smooth curve and a progress bar that moves.
_ROWS = 40

HELP = """Run strategies on virtual nodes and a virtual clock, and compare them.

The gradients are real, computed here; only the network and the time are
virtual. Every strategy gets the same data, the same hardware and the same
luck. Ends with a table, a picture and a CSV file of rows.

\b
[bold]Examples[/bold]
  flockstep simulate DataParallel "LocalSGD(period=8)" --nodes 64
  flockstep simulate "CELGC(period=8)" --straggler 3:4x
  flockstep simulate "LocalSGD(period=8)" --slowdown 2:9x@3s+2s --spread 0.3
  flockstep simulate "LocalSGD(period=8)" --pause 2@3s+2s
  flockstep simulate "LocalSGD(period=8)" --elastic --crash 2@3s+2s

\b
A character LSTM, half a minute:
  flockstep simulate DataParallel "CELGC(period=8, gamma=2.0)" \\
    --workload shakespeare --lr 4 --nodes 4

\b
Models sent with half the bits:
  flockstep simulate --link "10 Mbit/s" \\
    "LocalSGD(period=4, average=Coded(codec=Cast(dtype='bf16')))"
"""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all strategies of one comparison share."""

    workload: fs.Workload
    nodes: int
    steps: int
    optimizer: OptimizerFactory
    network: fs.Network
    compute: fs.Compute
    faults: Sequence[Fault]
    seed: int
    elastic: bool | fs.Elastic = False


def simulate(
    strategies: options.Strategies,
    workload: options.Workload = "quadratics",
    nodes: options.Nodes = 8,
    steps: options.Steps = 200,
    lr: options.LearningRate = 0.1,
    optimizer: options.Optimizer = OptimizerName.sgd,
    link: options.Link = "100 Mbit/s",
    latency: options.Latency = "5 ms",
    step_time: options.StepTime = "50 ms",
    spread: options.Spread = 0.0,
    straggler: options.Straggler = None,
    slowdown: options.Slowdown = None,
    crash: options.Crash = None,
    pause: options.Pause = None,
    partition: options.Partition = None,
    drop: options.Drop = None,
    elastic: options.Elastic = False,
    min_nodes: options.MinNodes = None,
    seed: options.Seed = 0,
    threads: options.Threads = 1,
    out: options.Out = options.OUT,
    debug: options.Debug = False,
) -> None:
    """Run strategies on virtual nodes, and compare them."""
    with consoles.plain_errors(debug=debug):
        torch.set_num_threads(check.whole("simulate", "threads", threads))
        programs = [parse.strategy(text) for text in strategies]
        faults: list[Fault] = [
            *map(fault_texts.crash, crash or ()),
            *map(fault_texts.slowdown, slowdown or ()),
            *map(fault_texts.pause, pause or ()),
            *map(fault_texts.partition, partition or ()),
            *map(fault_texts.drop, drop or ()),
        ]
        setting = Setting(
            workload=parse.workload(workload),
            nodes=check.whole("simulate", "nodes", nodes),
            steps=check.whole("simulate", "steps", steps),
            optimizer=optimizer.factory(check.positive("simulate", "lr", lr)),
            network=fs.Network(bandwidth=link, latency=latency),
            compute=fs.Compute(step=step_time, spread=spread, stragglers=fault_texts.stragglers(straggler or ())),
            faults=faults,
            seed=seed,
            elastic=_elastic(elastic, min_nodes),
        )
        # Made before the work, so that a folder that cannot be written costs no one their results.
        out.mkdir(parents=True, exist_ok=True)
        runs = _run_all(programs, setting)
        _tell(
            runs, f"{workload} on {nodes} virtual nodes: {link} links, {latency} latency, {step_time} per gradient", out
        )
    if any(run.failure for run in runs):
        raise typer.Exit(consoles.FAILED)


def _elastic(elastic: bool, min_nodes: int | None) -> bool | fs.Elastic:
    if min_nodes is not None and not elastic:
        raise ValueError("--min-nodes is of a run whose nodes come and go: give --elastic, too")
    return fs.Elastic(min_nodes=min_nodes) if elastic else False


def _run_all(programs: Sequence[fs.Strategy], setting: Setting) -> list[report.Run]:
    plans = [Plan(describe(program), setting.steps, setting.nodes) for program in programs]
    runs = []
    with Watch(consoles.messages(), plans) as watch:
        for index, program in enumerate(programs):
            failure = None
            try:
                trace = fs.simulate(
                    program,
                    setting.workload,
                    nodes=setting.nodes,
                    steps=setting.steps,
                    optimizer=setting.optimizer,
                    network=setting.network,
                    compute=setting.compute,
                    faults=setting.faults,
                    elastic=setting.elastic,
                    record_every=max(1, setting.steps // _ROWS),
                    seed=setting.seed,
                    on_row=watch.follow(index),
                )
            except fs.FlockstepError as error:
                if error.trace is None or not isinstance(error, fs.LostPeer | fs.Deadlock | fs.Diverged):
                    raise
                trace, failure = error.trace, error
            runs.append(report.Run("", trace, failure))
    return runs


def _tell(runs: Sequence[report.Run], title: str, out: Path) -> None:
    console = consoles.results()
    console.print(report.table(runs, title=title, seconds="virtual seconds"))
    for run in runs:
        if run.failure is not None:
            consoles.complain(f"{run.trace.strategy} ended early: {run.failure}")
    picture = plot([run.trace for run in runs], out / "simulate.png", title=title)
    rows = report.write_rows(runs, out / "simulate.csv")
    console.print(f"Picture: {picture}\nRows:    {rows}", markup=False, soft_wrap=True)
