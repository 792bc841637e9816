"""What every strategy gives with no argument but its period: is it better than not using it?

Five ordinary trainings (a GPT with AdamW, an LSTM with SGD, unclipped and clipped, a ResNet with momentum, logistic
regression), learning rates tuned for one node alone and used as they are, on 2, 4 and 8 virtual nodes, over three
seeds. Beside every row: one node alone with as many steps per node, and DataParallel with as many samples. "kept" is
the share of DataParallel's gain over one node alone that is left: 1 is as good as DataParallel, below 0 is worse than
training alone. No row is left out unless --only asks for some. With --rates, every row may choose its rate from one
grid, on the largest number of nodes.

Bars: every row ends below one node alone; the best row that sends a sixteenth of DataParallel's bytes keeps half.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.defaults.lines import SIXTEENTH, Found, told
from benchmarks.defaults.runs import ALONE, STRATEGIES, TOGETHER, Job, run
from benchmarks.defaults.tasks import FACTORS, TASKS
from benchmarks.pool import run_all
from flockstep.workloads.datasets import data_folder

RESULTS = Path(__file__).parents[1] / "results"
NAME = "benchmarks.defaults"
HALF = 0.5


def main() -> None:
    """Run all of it, and tell."""
    options = _options()
    tasks, missing = _tasks(options.tasks)
    if options.quick:
        tasks = tasks[-1:]
    steps, counts, seeds = (20, [2], [0]) if options.quick else (options.steps, options.nodes, options.seeds)
    factors = FACTORS if options.rates or options.tune else (1.0,)
    if options.tune:
        todo = [Job(task, ALONE, 1, seed, steps, f) for task in tasks for seed in seeds for f in factors]
    else:
        todo = _jobs(tasks, counts[-1:] if options.rates else counts, seeds, steps, factors)
        todo = [job for job in todo if job.strategy in (ALONE, TOGETHER) or _asked(job, options.only)]
    folder = options.out or (None if options.quick or options.only else RESULTS)
    name = f"{NAME}_rates" if options.rates else NAME
    # The longest first, so that none is left to run alone.
    todo.sort(key=lambda job: -job.nodes)
    progress, found = report.Progress(len(todo)), []
    for row in run_all(run, todo, options.workers):
        found.append(row)
        progress("{task}, {strategy}, {nodes} node(s), seed {seed}: {loss:.4f}{failed}".format(**row))
        if folder is not None and not options.tune:
            # At once: a run of many minutes may be interrupted.
            report.keep(f"{name}_runs", found, folder)
    order = [ALONE, TOGETHER, *STRATEGIES]
    found.sort(key=lambda row: (row["task"], row["nodes"], order.index(row["strategy"]), row["seed"], row["factor"]))
    note = f"{steps} steps of every node, seeds {seeds}; loss on held-out data, mean over seeds.\n{missing}".rstrip()
    if options.tune:
        report.finish(f"{NAME}_tuned", found, figures={}, met={}, folder=None, note=note)
        return
    rows = told(found)
    if folder is not None:
        report.keep(f"{name}_runs", found, folder)
    report.finish(name, rows, figures={"steps": steps, "seeds": seeds}, met=bars(rows), folder=folder, note=note)


def _options() -> argparse.Namespace:
    parser = report.arguments(NAME, __doc__ or "")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, metavar="TASK", help=f"of {', '.join(TASKS)}")
    names = sorted(name.partition("(")[0] for name in STRATEGIES)
    what = "these strategies, beside one node alone and DataParallel; kept with --out only"
    parser.add_argument("--only", nargs="+", choices=names, metavar="STRATEGY", help=what)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8], help="how many (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=256, help="of every node (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="runs at a time (default: one per core)")
    parser.add_argument("--rates", action="store_true", help=f"every row chooses among {FACTORS} times the rate")
    parser.add_argument("--tune", action="store_true", help="one node alone at these rates, and nothing else")
    return parser.parse_args()


def _tasks(asked: Sequence[str] | None) -> tuple[list[str], str]:
    """Those that can be run here, and what is to be said of the others."""
    tasks = list(asked or TASKS)
    try:
        data_folder("cifar10")
    except FileNotFoundError as error:
        return [task for task in tasks if "ResNet" not in task], f"Left out: ResNet, {error}"
    return tasks, ""


def _asked(job: Job, only: Sequence[str] | None) -> bool:
    return only is None or job.strategy.partition("(")[0] in only


def _jobs(
    tasks: Sequence[str], counts: Sequence[int], seeds: Sequence[int], steps: int, factors: Sequence[float]
) -> list[Job]:
    every = [(ALONE, 1), *((name, nodes) for nodes in counts for name in (TOGETHER, *STRATEGIES))]
    return [Job(task, *which, seed, steps, f) for task in tasks for which in every for seed in seeds for f in factors]


def bars(rows: Found) -> dict[str, bool]:
    """One for each row, and one for the best of those that send little, on each task."""
    met = {}
    for row in rows:
        place = f"{row['task']}, {row['nodes']} nodes"
        if row["strategy"] != TOGETHER:
            met[f"{place}: {row['strategy']} below one node alone"] = row["loss"] < row["alone"]
    for task in dict.fromkeys(row["task"] for row in rows):
        most = max(row["nodes"] for row in rows)
        few = [r for r in rows if r["task"] == task and r["nodes"] == most and r["bytes"] <= 1.1 * SIXTEENTH]
        best = max((r["kept"] for r in few if math.isfinite(r["kept"])), default=math.nan)
        met[f"{task}, {most} nodes: the best at a sixteenth of the bytes keeps {best}, at least {HALF}"] = best >= HALF
    return met


if __name__ == "__main__":
    main()
