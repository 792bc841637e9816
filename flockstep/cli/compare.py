"""``flockstep compare``: which strategy, with which settings, on such a network, and what is gained."""

from __future__ import annotations

import shlex
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from flockstep import check, pages
from flockstep.cli.support import compare_table, consoles, options
from flockstep.cli.support.compare_progress import Bars
from flockstep.compare import default_plan, folder, runner, search, settings
from flockstep.compare.folder import Results
from flockstep.compare.plan import Comparison
from flockstep.cores import cores
from flockstep.texts.optimizer_texts import OptimizerName

HELP = """Compare strategies side by side, and get a page to show to others.

Every strategy gets the same data, the same cluster and the same luck, with
several seeds. Virtual nodes and a virtual clock unless `--real`. Ends with a
table and a report: one HTML file that needs no network, with a picture and
CSV files beside it. Stopped halfway, the same command goes on from there.

\b
[bold]Six strategies on 16 virtual nodes[/bold], one of them slow (two minutes):
  flockstep compare --straggler 3:4x

\b
[bold]Your own choice; the first is what the others are compared with:[/bold]
  flockstep compare DataParallel "LocalSGD(period=4)" "LocalSGD(period=16)"
  flockstep compare DataParallel "CELGC(period=8, gamma=2.0)" \\
    --nodes 8 --link "20 Mbit/s" --latency "40 ms" --crash 5@6s --seeds 5

\b
[bold]A rate for each[/bold]: all are tried once, every strategy goes on with its best:
  flockstep compare DataParallel "DiLoCo(period=8)" --rates 0.01,0.02,0.04,0.08

\b
[bold]From a file[/bold] (options given here count more than what it says):
  flockstep compare plan.toml --seeds 1

\b
[bold]Your own loop[/bold]: def train(strategy) in my_training.py, which joins
with that strategy and records losses with node.log(loss):
  flockstep compare DataParallel "Swarm(period=4)" \\
    --workload my_training:train

\b
[bold]For real[/bold], on processes of this machine; as root, with limited links:
  flockstep compare DataParallel "LocalSGD(period=8)" --real
  flockstep compare DataParallel "LocalSGD(period=8)" --real --link "50 Mbit/s"
"""

_WHAT = "What to compare, such as 'CELGC(period=8, gamma=2.0)', or a plan file (.toml); six strategies unless given."
_WORKLOAD = "What to train: see `flockstep simulate --help`; or module:train, module:workload of your own."

Strategies = Annotated[list[str] | None, Argument(metavar="[PLAN.toml] [STRATEGY]...", help=_WHAT)]
Workload = Annotated[str, Option(help=_WORKLOAD)]
Nodes = Annotated[int, Option(help="How many nodes; 2 with --real unless given.")]
Seeds = Annotated[int, Option(help="Runs of each strategy, with seeds 0, 1, ...")]
Target = Annotated[float | None, Option(help="Loss to be reached; the lowest that all came down to, unless given.")]
LearningRate = Annotated[
    float | None, Option(help="The optimizer's learning rate; 0.04 on shakespeare and 0.1 elsewhere unless given.")
]
Rates = Annotated[
    str | None, Option(help="Learning rates such as 0.01,0.03,0.1: every strategy takes its best, tried with one seed.")
]
Optimizer = Annotated[
    OptimizerName | None,
    Option(help="Every node's local optimizer; adamw on shakespeare and sgd elsewhere unless given."),
]
Real = Annotated[bool, Option("--real", help="On processes of this machine, not on virtual nodes.")]
Fresh = Annotated[bool, Option("--fresh", help="Forget what the folder holds, and begin anew.")]
Workers = Annotated[int | None, Option(help="Virtual runs at once; one per core unless given.")]
Open = Annotated[bool, Option("--open", help="Show the report in the browser.")]
Out = Annotated[Path, Option(help="Folder for the report, and for what it is made of.")]

OUT = Path("flockstep-compare")


def compare(
    ctx: typer.Context,
    strategies: Strategies = None,
    workload: Workload = default_plan.WORKLOAD,
    nodes: Nodes = default_plan.NODES,
    link: options.Link = "100 Mbit/s",
    latency: options.Latency = "20 ms",
    step_time: options.StepTime = "50 ms",
    spread: options.Spread = 0.0,
    straggler: options.Straggler = None,
    slowdown: options.Slowdown = None,
    crash: options.Crash = None,
    pause: options.Pause = None,
    partition: options.Partition = None,
    drop: options.Drop = None,
    real: Real = False,
    steps: options.Steps = default_plan.STEPS,
    lr: LearningRate = None,
    rates: Rates = None,
    optimizer: Optimizer = None,
    seeds: Seeds = default_plan.SEEDS,
    target: Target = None,
    workers: Workers = None,
    out: Out = OUT,
    fresh: Fresh = False,
    open: Open = False,
    debug: options.Debug = False,
) -> None:
    """Compare strategies, and write a report."""
    with consoles.plain_errors(debug=debug):
        comparison = _read(ctx)
        side_by_side = check.whole("compare", "workers", cores() if workers is None else workers)
        _check_report()
        with folder.alone(out):
            if comparison.rates:
                # It makes the folder fresh where that is asked for, and leaves its best runs in it.
                comparison, fresh = _searched(comparison, out, fresh=fresh, workers=side_by_side), False
            results = _run(comparison, out, fresh=fresh, workers=side_by_side)
            page = _tell(results, comparison, out)
        if open:
            webbrowser.open(page.resolve().as_uri())
    if any(outcome.failure for line in results.runs for outcome in line):
        raise typer.Exit(consoles.FAILED)


def _check_report() -> None:
    """What a report needs must be there before minutes are spent on runs."""
    try:
        pages.library("compare")
    except ModuleNotFoundError as missing:
        raise ValueError(str(missing)) from missing


# What says how to run or where to write, not what is compared.
_ASIDE = ("ctx", "workers", "out", "fresh", "open", "debug")


def _read(ctx: typer.Context) -> Comparison:
    """What was asked for: defaults, then the plan file, then what was typed."""
    everything = {name: value for name, value in ctx.params.items() if name not in _ASIDE}
    sources = {name: ctx.get_parameter_source(name) for name in everything}
    typed = {name: everything[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    words: list[str] = list(typed.pop("strategies", None) or ())
    file = words.pop(0) if words and words[0].endswith(".toml") else None
    planned = {} if file is None else settings.read_plan(Path(file))
    command = _command(file, words, typed)
    said = {**planned, **typed, **({"strategies": words} if words else {})}
    return settings.comparison({**everything, **said}, set(said), command)


def _command(file: str | None, words: Sequence[str], typed: Mapping[str, Any]) -> str:
    """The command that compares the same, as one would type it."""
    said = ["flockstep", "compare", *([] if file is None else [file]), *words]
    for name, value in typed.items():
        option = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list | tuple) else [value]:
            said += [option] if each is True else [option, str(each)]
    return shlex.join(said)


def _searched(comparison: Comparison, out: Path, *, fresh: bool, workers: int) -> Comparison:
    """The comparison with each strategy's best rate, found and told."""
    console = consoles.messages()
    rates = ", ".join(f"{rate:g}" for rate in comparison.rates)
    console.print(f"First every strategy once with each of the learning rates {rates}.", markup=False, soft_wrap=True)
    found = _run(search.trials(comparison), out / search.FOLDER, fresh=fresh, workers=workers)
    chosen = search.decided(comparison, found)
    for line in chosen.search:
        consoles.results().print(line, markup=False, highlight=False, soft_wrap=True)
    runner.prepare(chosen, out, fresh=fresh)
    search.keep_what_was_run(comparison, chosen, out)
    return chosen


def _run(comparison: Comparison, out: Path, *, fresh: bool, workers: int) -> Results:
    todo = runner.prepare(comparison, out, fresh=fresh)
    every = len(comparison.entries) * len(comparison.seeds)
    console = consoles.messages()
    if len(todo) < every:
        console.print(f"{every - len(todo)} of {every} runs are in {out} already.", markup=False, soft_wrap=True)
    bars = Bars(console, comparison.labels, seeds=len(comparison.seeds), steps=comparison.steps, todo=todo)
    try:
        with bars:
            return runner.run_all(comparison, out, todo, bars, workers=workers)
    except KeyboardInterrupt:
        left = len(runner.prepare(comparison, out, fresh=False))
        consoles.complain(f"{every - left} of {every} runs are kept in {out}; the same command goes on from there.")
        raise
    finally:
        for line in bars.warnings:
            console.print(line, style="yellow", markup=False, soft_wrap=True)


def _tell(results: Results, comparison: Comparison, out: Path) -> Path:
    # Plots are drawn by a library that takes its time to import.
    from flockstep.compare import report
    from flockstep.compare.report.figures import summaries, target_of

    console, goal = consoles.results(), target_of(results)
    lines = summaries(results, goal)
    seeds = f"{len(comparison.seeds)} seed{'s' * (len(comparison.seeds) > 1)}"
    title = f"{comparison.workload} on {comparison.cluster.describe()}; {seeds}"
    console.print(compare_table.table(lines, goal, title))
    for line in lines:
        for seed, failure in line.failures:
            consoles.complain(f"{line.label} with seed {seed} ended early: {failure}")
    page = report.write(results, out)
    for name, file in zip(("Report", "Picture", "Rows", "Table"), runner.REPORT, strict=True):
        console.print(f"{name + ':':<9}{out / file}", markup=False, soft_wrap=True)
    return page
