"""SwarmSGD on CIFAR-10: ResNet-20 on virtual nodes that share one GPU.

Compared at equal passes over the data of all nodes together, and at 1.4 times as many: small-batch SGD on one node,
LocalSGD, and Swarm with 1, 2 and 4 local steps in 32 and 8 bits (with one, it is AD-PSGD, too). Then Swarm with one
thing changed at a time: a free network, merges at the end of a phase only, pairs that wait for each other. Everybody
has the same batch per node, rate, momentum and schedule, by global progress. Accuracy is that of the average model.
Needs the data folder: set FLOCKSTEP_DATA to the folder that has cifar10 in it.

Bars: 8 bits at most 0.5 points below 32 bits; Swarm with its default of one step, in 8 bits, at most 1.5 points below
LocalSGD with period 4.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from benchmarks import report
from benchmarks.pool import run_all
from benchmarks.report import Figures
from experiments.swarm_cifar10 import picture
from experiments.swarm_cifar10.settings import DEFAULT, METHODS, SGD, YARDSTICK, Size, jobs
from experiments.swarm_cifar10.training import COMPUTE, run

NAME = "experiments.swarm_cifar10"
BITS_MAY_LOSE, SWARM_MAY_LOSE = 0.5, 1.5


def main() -> None:
    """Train all of them, or read the kept rows; then tell."""
    options = _options()
    size = _size(options)
    folder = options.out or (None if options.quick else Path(__file__).parent)
    # The longest first, so that none is left to run alone.
    todo = sorted(jobs(size), key=lambda job: -job.passes)
    progress, rows, curves = report.Progress(len(todo)), [], []
    for figures, curve in run_all(run, todo, size.workers):
        rows.append(figures)
        curves += curve
        told = "{method}, {nodes} node(s), {passes:g} passes, seed {seed}: {accuracy:.2f}%".format(**figures)
        progress(told)
        order = list(METHODS)
        rows.sort(key=lambda row: (row["passes"], row["nodes"], order.index(row["method"]), row["seed"]))
        if folder is not None:
            # At once: a run of many minutes may be interrupted.
            report.keep(f"{NAME}_runs", rows, folder)
            report.keep(f"{NAME}_curves", curves, folder)
    if folder is not None and find_spec("matplotlib"):
        print(f"picture: {picture.draw(rows, curves, folder / 'swarm_cifar10.png', _title(size))}", file=sys.stderr)
    _tell(rows, size)


def _options() -> argparse.Namespace:
    parser = report.arguments(NAME, __doc__ or "")
    parser.add_argument("--nodes", type=int, nargs="+", help="how many virtual nodes (default: 8 and 16)")
    parser.add_argument("--passes", type=float, help=f"over the data, by all nodes (default: {Size.passes:g})")
    parser.add_argument("--lengths", type=float, nargs="+", help="multiples of --passes (default: 1 and 1.4)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD", help="only these")
    parser.add_argument("--seeds", type=int, nargs="+", help="of weights, batches and partners (default: 0)")
    parser.add_argument("--workers", type=int, help=f"runs at a time (default: {Size.workers})")
    parser.add_argument("--device", help="a torch device (default: cuda)")
    return parser.parse_args()


def _size(options: argparse.Namespace) -> Size:
    size = Size().quick() if options.quick else Size()
    given = {
        "nodes": options.nodes and tuple(options.nodes),
        "seeds": options.seeds and tuple(options.seeds),
        "lengths": options.lengths and tuple(options.lengths),
        "methods": options.methods and tuple(options.methods),
        "passes": options.passes,
        "workers": options.workers,
        "device": options.device,
    }
    return replace(size, **{name: value for name, value in given.items() if value is not None})


def _tell(rows: list[Figures], size: Size) -> None:
    means = averaged(rows)
    gaps = {key: means[key][0] - means[as_bits(key, 8)][0] for key in means if _has_few_bits(key, means)}
    behind = {
        f"{nodes} nodes, {passes:g} passes": means[YARDSTICK, nodes, passes][0] - mean
        for (method, nodes, passes), (mean, _) in means.items()
        if method == DEFAULT and (YARDSTICK, nodes, passes) in means
    }
    met = {}
    if gaps:
        gap = statistics.fmean(gaps.values())
        met[f"8 bits lose at most {BITS_MAY_LOSE} points against 32 bits, on average"] = gap <= BITS_MAY_LOSE
    if behind:
        most = max(behind.values())
        met[f"Swarm in 8 bits loses at most {SWARM_MAY_LOSE} points against LocalSGD"] = most <= SWARM_MAY_LOSE
    told = [
        {
            "method": method,
            "nodes": nodes,
            "passes": passes,
            "accuracy %": f"{mean:.2f}" + (f" +- {spread:.2f}" if spread else ""),
            "virtual s": _one(rows, method, nodes, passes)["virtual s"],
            "MB sent per node": _one(rows, method, nodes, passes)["MB sent per node"],
        }
        for (method, nodes, passes), (mean, spread) in means.items()
    ]
    figures = {
        "points lost by 8 bits": {
            f"{method[: method.rindex(',')]}, {nodes} nodes, {passes:g} passes": round(value, 2)
            for (method, nodes, passes), value in gaps.items()
        },
        "points lost against LocalSGD": {place: round(value, 2) for place, value in behind.items()},
        "seeds": list(size.seeds),
    }
    report.finish(NAME, told, figures=figures, met=met, folder=None, note=_title(size))


def averaged(rows: list[Figures]) -> dict[tuple[str, int, float], tuple[float, float]]:
    """Mean accuracy over seeds, and its standard deviation, of every setting."""
    found: dict[tuple[str, int, float], list[float]] = {}
    for row in rows:
        found.setdefault((row["method"], row["nodes"], row["passes"]), []).append(row["accuracy"])
    return {key: (statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else 0.0) for key, v in found.items()}


def as_bits(key: tuple[str, int, float], bits: int) -> tuple[str, int, float]:
    """The same setting in other bits."""
    return key[0].replace("32 bits", f"{bits} bits"), *key[1:]


def _has_few_bits(key: tuple[str, int, float], means: dict[tuple[str, int, float], tuple[float, float]]) -> bool:
    return "32 bits" in key[0] and as_bits(key, 8) in means


def _one(rows: list[Figures], method: str, nodes: int, passes: float) -> Figures:
    return next(row for row in rows if (row["method"], row["nodes"], row["passes"]) == (method, nodes, passes))


def _title(size: Size) -> str:
    network = METHODS[SGD].network
    return (
        f"CIFAR-10 ({size.images} training, {size.tests} test images), ResNet-20, batch {size.batch} per node, "
        f"rate {size.rate:g}\nvirtual time: {network.bandwidth} links, {network.latency} latency, "
        f"{COMPUTE.step} per gradient, spread {COMPUTE.spread:g}"
    )


if __name__ == "__main__":
    main()
