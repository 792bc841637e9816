"""What do eight nodes buy at a sixteenth of DataParallel's bytes, and which way of sending little buys most?

A GPT of 115,000 parameters with AdamW and a ResNet with momentum (those of benchmarks.defaults), 192 steps on each of
eight virtual nodes, every row at the best of four rates, seeds 0 to 2. The ways:

-   rarely: models or changes in full, every 16 steps
-   in few bits: the same bytes as changes of 16 bits every 8 steps, of 8 bits every 4, or of 4 bits every 2, with what
    was left out sent later; gradients in 2 bits, or in sketches of low rank
-   at other times: as many means as every 16 steps gives, most of them early or most of them late (by hand)
-   with the optimizer's moments averaged as well, which costs two or three times the bytes (by hand)

"kept" is the share of DataParallel's gain over one node alone, both at their best rates. Bar: the best row of each
training that sends at most 1.1 sixteenths keeps 0.8.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.defaults.lines import SIXTEENTH, told
from benchmarks.defaults.runs import ALONE, TOGETHER, Job
from benchmarks.pool import run_all
from experiments.sixteenth.ways import WAYS, one_run

NAME = "experiments.sixteenth"
HERE = Path(__file__).parent
AIM = 0.8
FACTORS = [0.5, 1.0, 2.0, 4.0]
TASKS = ("GPT, AdamW", "ResNet, momentum")


def main() -> None:
    """Run all of it, and tell."""
    options = _options()
    steps, seeds, nodes, factors = (
        (16, [0], 2, [1.0]) if options.quick else (options.steps, options.seeds, 8, options.factors)
    )
    tasks = TASKS[:1] if options.quick else options.tasks
    which = [(ALONE, 1), (TOGETHER, nodes), *((way, nodes) for way in WAYS)]
    todo = [Job(task, *one, seed, steps, f) for task in tasks for one in which for seed in seeds for f in factors]
    folder = options.out or (None if options.quick else HERE)
    progress, found = report.Progress(len(todo)), []
    for row in run_all(one_run, todo, options.workers):
        found.append(row)
        progress("{task}, {strategy}, {factor} times the rate, seed {seed}: {loss:.4f}{failed}".format(**row))
        if folder is not None:
            # At once: a run of many minutes may be interrupted.
            report.keep(f"{NAME}_runs", found, folder)
    order = [ALONE, TOGETHER, *WAYS]
    found.sort(key=lambda row: (row["task"], order.index(row["strategy"]), row["factor"], row["seed"]))
    rows = told(found)
    if folder is not None:
        report.keep(f"{NAME}_runs", found, folder)
    note = f"{steps} steps of every node, seeds {seeds}; loss on held-out data, mean over seeds, at a row's best rate."
    figures = {"steps": steps, "nodes": nodes, "seeds": seeds}
    report.finish(NAME, rows, figures=figures, met=bars(rows, options.quick), folder=folder, note=note)


def _options() -> argparse.Namespace:
    parser = report.arguments(NAME, __doc__ or "")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help=f"of {TASKS}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: %(default)s)")
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS, help="of the rate (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=192, help="of every node (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="runs at a time (default: one per core)")
    return parser.parse_args()


def bars(rows: list[dict[str, Any]], quick: bool) -> dict[str, bool]:
    """One for each training: the best of those that send little."""
    met = {}
    for task in dict.fromkeys(row["task"] for row in rows):
        if quick:
            met[f"{task}: the best at a sixteenth keeps {AIM} (not to be judged by a quick run)"] = False
            continue
        few = [row for row in rows if row["task"] == task and row["bytes"] <= 1.1 * SIXTEENTH]
        best = max(few, key=lambda row: float(row["kept"]))
        met[f"{task}: the best at a sixteenth ({best['strategy']}) keeps {best['kept']}, at least {AIM}"] = (
            best["kept"] >= AIM
        )
    return met


if __name__ == "__main__":
    main()
