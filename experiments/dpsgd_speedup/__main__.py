"""Does DPSGD get faster with more cores and more machines, and what do staleness and sharing cost in steps?

Logistic regression on data made up from a seed, on virtual machines of p cores: W workers, one of which is the server
too, push to it over links of 100 Mbit/s after B steps of each core. Counted is what it takes until the loss is within a
given distance of its least value: steps of all cores of all machines together, and virtual seconds. The analysis in the
paper has linear speed-up for p <= T^1/4 and W <= T^1/2, T the steps in all. See README.md beside this file.
"""

from __future__ import annotations

import math
import statistics
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import flockstep as fs
from benchmarks.report import Progress, arguments, finish
from experiments.dpsgd_speedup.picture import draw
from experiments.logistic import minimiser
from flockstep.workloads.convex import Logistic

NAME = "experiments.dpsgd_speedup"
HERE = Path(__file__).parent
ROWS, FEATURES, BATCH, L2, RATE, LOCAL_STEPS = 4000, 40, 8, 1e-2, 0.02, 4
THREADS, WORKERS = (1, 2, 4), (1, 2, 4, 8)
WITHIN = 0.05
"""Of the loss above its least value that is left to count as arrived."""
NETWORK = fs.Network(bandwidth="100 Mbit/s", latency="1 ms")
COMPUTE = fs.Compute(step="10 ms", spread=0.2)
MOST = 1.10


@dataclass(frozen=True)
class Result:
    """All seeds of one number of threads and workers."""

    threads: int
    workers: int
    steps: list[float]
    """Of all together, until the loss is there."""
    seconds: list[float]
    staleness: float
    """Folds between reading and pushing, on average over pushes."""


def data() -> tuple[NDArray[Any], NDArray[Any]]:
    """Features and labels: a linear boundary, and one label in ten wrong."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, FEATURES))
    labels = np.sign(features @ rng.standard_normal(FEATURES))
    labels[rng.random(ROWS) < 0.1] *= -1
    return features, labels


def measure(workload: Logistic, target: float, threads: int, workers: int, seeds: int, total: int) -> Result:
    """Run every seed until it has taken ``total`` steps; where it crossed the target."""
    steps, seconds, stale = [], [], []
    for seed in range(seeds):
        with warnings.catch_warnings():
            # That is what the picture is about.
            warnings.filterwarnings("ignore", message="DPSGD's analysis")
            trace = fs.simulate(
                fs.DPSGD(threads=threads, period=LOCAL_STEPS, server_lr=1.0),
                workload,
                nodes=workers,
                steps=total // workers,
                optimizer=partial(torch.optim.SGD, lr=RATE),
                network=NETWORK,
                compute=COMPUTE,
                record_every=max(1, total // workers // 200),
                seed=seed,
            )
        at, when = crossing(trace, target)
        steps.append(at * workers)
        seconds.append(when)
        counts = {k.split()[-1]: n for k, n in trace.nodes[0].counts.items() if k.startswith("staleness ")}
        stale.append(sum(_middle(k) * n for k, n in counts.items()) / sum(counts.values()))
    return Result(threads, workers, steps, seconds, statistics.mean(stale))


def beside_a_straggler(workload: Logistic, steps: int) -> float:
    """Of five workers the last is four times slower: the least of the others' steps per second, of those without it."""
    paces = []
    for stragglers in ({}, {4: 4.0}):
        trace = fs.simulate(
            fs.DPSGD(period=LOCAL_STEPS, server_lr=1.0),
            workload,
            nodes=5,
            steps=steps,
            optimizer=partial(torch.optim.SGD, lr=RATE),
            network=NETWORK,
            compute=fs.Compute(step="10 ms", spread=0.2, stragglers=stragglers),
        )
        paces.append([node.steps / node.seconds for node in trace.nodes[:4]])
    alike, uneven = paces
    return min(slow / fast for fast, slow in zip(alike, uneven, strict=True))


def _middle(bucket: str) -> float:
    low, _, high = bucket.partition("-")
    return (float(low) + float(high or low)) / 2


def crossing(trace: fs.Trace, target: float) -> tuple[float, float]:
    """Steps of each node, and seconds, until the loss was at the target: between two records, along a line."""
    for before, after in zip(trace.rows, trace.rows[1:], strict=False):
        if after.loss <= target:
            share = (before.loss - target) / (before.loss - after.loss)
            return (
                before.step + share * (after.step - before.step),
                before.seconds + share * (after.seconds - before.seconds),
            )
    return float("inf"), float("inf")


def row(result: Result, one: Result) -> dict[str, Any]:
    """A result as it is kept, beside one core of one machine."""
    ratios = [a / b for a, b in zip(result.steps, one.steps, strict=True)]
    faster = [b / a for a, b in zip(result.seconds, one.seconds, strict=True)]
    t = statistics.median(result.steps)
    if not math.isfinite(t):
        raise SystemExit(
            f"p = {result.threads}, W = {result.workers} did not reach the loss: raise the number of steps"
        )
    return {
        "threads p": result.threads,
        "workers W": result.workers,
        "steps in all": round(t),
        "of p = W = 1": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "seconds": round(statistics.median(result.seconds), 2),
        "times faster": round(statistics.median(faster), 2),
        "staleness": round(result.staleness, 2),
        "in the theory": result.threads <= t**0.25 and result.workers <= t**0.5,
    }


def main() -> None:
    """All numbers of threads and workers, then the bars."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--seeds", type=int, default=5, help="how many (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    features, labels = data()
    workload = Logistic(data=(features, labels), batch=BATCH, l2=L2)
    signed = torch.from_numpy(np.column_stack([features, np.ones(len(features))]) * labels[:, None])
    bottom, begin = workload.loss(minimiser(signed, L2).float()), workload.loss(workload.start())
    target = bottom + WITHIN * (begin - bottom)
    threads, workers = ((1, 2), (1, 4)) if options.quick else (THREADS, WORKERS)
    seeds, total = (1, 1200) if options.quick else (options.seeds, 1600)
    progress, results = Progress(len(threads) * len(workers)), {}
    for p in threads:
        for w in workers:
            progress(f"p = {p}, W = {w}, {seeds} seed(s)")
            results[p, w] = measure(workload, target, p, w, seeds, total)
    rows = [row(result, results[1, 1]) for result in results.values()]
    kept = beside_a_straggler(workload, 100 if options.quick else 400)
    share = {(r["threads p"], r["workers W"]): r["of p = W = 1"] for r in rows}
    folder = options.out or (None if options.quick else HERE)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        draw(rows, folder / "dpsgd_speedup.png")
    finish(
        NAME,
        rows,
        figures={
            "pace beside a straggler": round(kept, 4),
            "target": round(target, 5),
            "least": round(bottom, 5),
            "start": round(begin, 5),
            "seeds": seeds,
        },
        met={
            f"p = 2 takes {share[2, 1]} of the steps of p = 1, at most {MOST}": share[2, 1] <= MOST,
            f"W = 4 takes {share[1, 4]} of the steps of W = 1, at most {MOST}": share[1, 4] <= MOST,
            f"beside one that is 4 times slower, workers keep {kept:.4f} of their steps/s, 0.98 or more": kept >= 0.98,
        },
        folder=folder,
        note=f"Loss from {begin:.4f} to {target:.4f}, {WITHIN:.0%} of the way above the least, {bottom:.4f}.",
    )


if __name__ == "__main__":
    main()
