"""``flockstep simulate``: strategies side by side on virtual nodes and a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

import flockstep as fs
from flockstep import check
from flockstep.backends.sim.faults import Fault
from flockstep.cli import consoles, misfortune, parse, report
from flockstep.cli.watch import Plan, Watch
from flockstep.node import OptimizerFactory
from flockstep.strategy import describe
from flockstep.trace import plot

# Losses recorded along a run: enough for a smooth curve and a progress bar that moves.
_ROWS = 40


class OptimizerName(StrEnum):
    """The optimizers a node can step with; all are torch's own."""

    sgd = "sgd"
    momentum = "momentum"
    adamw = "adamw"

    def factory(self, lr: float) -> OptimizerFactory:
        """What makes such an optimizer for a node."""
        if self is OptimizerName.adamw:
            return partial(torch.optim.AdamW, lr=lr)
        return partial(torch.optim.SGD, lr=lr, momentum=0.9 if self is OptimizerName.momentum else 0.0)


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


def simulate(
    strategies: Annotated[
        list[str],
        typer.Argument(
            metavar="STRATEGY",
            help="What to run, such as DataParallel or 'CELGC(period=8, gamma=1.0)'; one or more.",
        ),
    ],
    workload: Annotated[
        str, typer.Option(help=f"What to train: {', '.join(parse.WORKLOADS)}; arguments as in quadratics(dim=100).")
    ] = "quadratics",
    nodes: Annotated[int, typer.Option(help="How many virtual nodes.")] = 8,
    steps: Annotated[int, typer.Option(help="Steps each node takes.")] = 200,
    lr: Annotated[float, typer.Option(help="The optimizer's learning rate.")] = 0.1,
    optimizer: Annotated[OptimizerName, typer.Option(help="Every node's local optimizer.")] = OptimizerName.sgd,
    link: Annotated[str, typer.Option(help="Bandwidth of every node's up- and downlink.")] = "100 Mbit/s",
    latency: Annotated[str, typer.Option(help="One-way delay between two nodes.")] = "5 ms",
    step_time: Annotated[str, typer.Option(help="Mean time a gradient takes.")] = "50 ms",
    spread: Annotated[float, typer.Option(help="How uneven those times are: 0 not at all, 0.5 very.")] = 0.0,
    straggler: Annotated[
        list[str] | None, typer.Option(help="3:4x makes node 3 four times slower; repeatable.")
    ] = None,
    slowdown: Annotated[
        list[str] | None, typer.Option(help="3:4x@60s+30s does so from 60 s on for 30 s; repeatable.")
    ] = None,
    crash: Annotated[list[str] | None, typer.Option(help="5@60s kills node 5 after 60 s; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="One seed, one outcome.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads torch computes with; more only help large models.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the rows.")] = Path("flockstep-out"),
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Run strategies on virtual nodes and a virtual clock, and compare them.

    The gradients are real, computed here; only the network and the time are
    virtual. Every strategy gets the same data, the same hardware and the same
    luck. Ends with a table, a picture and a CSV file of rows.

    \b
    [bold]Examples[/bold]
      flockstep simulate DataParallel "LocalSGD(period=8)" --nodes 64
      flockstep simulate "CELGC(period=8, gamma=1.0)" --straggler 3:4x
      flockstep simulate "LocalSGD(period=8)" --crash "5@2 s" --spread 0.3

    \b
    A character LSTM, half a minute:
      flockstep simulate DataParallel "CELGC(period=8, gamma=2.0)" \\
        --workload shakespeare --lr 8 --nodes 4

    \b
    Models sent with half the bits:
      flockstep simulate --link "10 Mbit/s" \\
        "LocalSGD(period=4, average=Coded(codec=Cast(dtype='bf16')))"
    """
    with consoles.plain_errors(debug=debug):
        torch.set_num_threads(check.whole("simulate", "threads", threads))
        programs = [parse.strategy(text) for text in strategies]
        faults: list[Fault] = [*map(misfortune.crash, crash or ()), *map(misfortune.slowdown, slowdown or ())]
        setting = Setting(
            workload=parse.workload(workload),
            nodes=check.whole("simulate", "nodes", nodes),
            steps=check.whole("simulate", "steps", steps),
            optimizer=optimizer.factory(check.positive("simulate", "lr", lr)),
            network=fs.Network(bandwidth=link, latency=latency),
            compute=fs.Compute(step=step_time, spread=spread, stragglers=misfortune.stragglers(straggler or ())),
            faults=faults,
            seed=seed,
        )
        # Made before the work, so that a folder that cannot be written costs no one their results.
        out.mkdir(parents=True, exist_ok=True)
        runs = _run_all(programs, setting)
        _tell(runs, f"{workload} on {nodes} virtual nodes: {link} links, {latency} latency, {step_time} per gradient", out)
    if any(run.failure for run in runs):
        raise typer.Exit(consoles.FAILED)


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
