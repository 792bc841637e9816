"""HPSGD: accuracy in a fixed wall time, and where its merges swing.

ResNet-20 on CIFAR-10, four virtual nodes that share one GPU, links of 1 Gbit/s, 100 Mbit/s and 20 Mbit/s: every method
trains for the same *virtual* time, with as many steps as fit into it. Then HPSGD on a quadratic for many learning rates
and periods: whether the global model swings, beside the formula (outer_lr c = 1/4). Needs the data folder: set
FLOCKSTEP_DATA to the folder that has cifar10 in it; --only stability does not.

Bars: over every link HPSGD or a member of its family is ahead of DataParallel; the formula is right about swinging.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from benchmarks import report
from benchmarks.pool import run_all
from benchmarks.report import Figures
from experiments.hpsgd_cifar10 import picture, stability
from experiments.hpsgd_cifar10.settings import COMPUTE, METHODS, NODES, Size, jobs
from experiments.hpsgd_cifar10.training import run

NAME = "experiments.hpsgd_cifar10"
FAMILY = [name for name in METHODS if name.startswith(("HPSGD", "CoCoD", "DiLoCo"))]
_NEAR = 0.02


def main() -> None:
    """Both parts, or one."""
    options = _options()
    size = Size().quick() if options.quick else Size()
    given = {name: getattr(options, name) for name in ("seconds", "seed", "workers", "device")}
    size = replace(size, **{name: value for name, value in given.items() if value is not None})
    folder = options.out or (None if options.quick else Path(__file__).parent)
    rows: list[Figures] = []
    met: dict[str, bool] = {}
    if options.only != "accuracy":
        met |= _stability(folder)
    if options.only != "stability":
        rows = _accuracy(size, folder)
        met |= _judged(rows, size.links)
    report.finish(NAME, rows, figures={"seconds": size.seconds}, met=met, folder=None, note=_title(size))


def _options() -> argparse.Namespace:
    parser = report.arguments(NAME, __doc__ or "")
    parser.add_argument("--only", choices=("accuracy", "stability"), help="one of the two parts")
    parser.add_argument("--seconds", type=float, help=f"virtual wall time of every run (default: {Size.seconds:g})")
    parser.add_argument("--seed", type=int, help="of weights and batches (default: 0)")
    parser.add_argument("--workers", type=int, help=f"runs at a time (default: {Size.workers})")
    parser.add_argument("--device", help="a torch device (default: cuda)")
    return parser.parse_args()


def _accuracy(size: Size, folder: Path | None) -> list[Figures]:
    todo = jobs(size)
    progress, rows, curves = report.Progress(len(todo)), [], []
    order = [(job.link, job.method) for job in todo]
    for figures, curve in run_all(run, todo, size.workers):
        rows.append(figures)
        curves += curve
        progress("{method}, {link}: {accuracy:.2f}%".format(**figures))
        rows.sort(key=lambda row: order.index((row["link"], row["method"])))
        if folder is not None:
            # At once: a run of many minutes may be interrupted.
            report.keep(f"{NAME}_runs", rows, folder)
            report.keep(f"{NAME}_curves", curves, folder)
    if folder is not None and find_spec("matplotlib"):
        picture.draw_accuracy(curves, size.links, folder / "hpsgd_cifar10.png", _title(size))
    return rows


def _stability(folder: Path | None) -> dict[str, bool]:
    rows = stability.grid()
    if folder is not None:
        report.keep(f"{NAME}_stability", rows, folder)
        if find_spec("matplotlib"):
            picture.draw_stability(rows, folder / "stability.png")
    # On the line itself a swing is too small to be seen in a few periods.
    clear = [row for row in rows if abs(row["outer_lr c"] - 0.25) > _NEAR]
    right = sum((row["outer_lr c"] > 0.25) == bool(row["swings"]) for row in clear)
    return {f"the formula is right about swinging in {right} of {len(clear)} settings": right == len(clear)}


def _judged(rows: list[Figures], links: Sequence[str]) -> dict[str, bool]:
    met = {}
    for link in links:
        found = {row["method"]: row["accuracy"] for row in rows if row["link"] == link}
        best = max(FAMILY, key=lambda name: found[name])
        told = (
            f"{link}: {best} {found[best]:.2f}%, HPSGD {found['HPSGD']:.2f}%, DataParallel {found['DataParallel']:.2f}%"
        )
        met[told] = found[best] > found["DataParallel"]
    return met


def _title(size: Size) -> str:
    return (
        f"CIFAR-10 ({size.images} training, {size.tests} test images), ResNet-20, {NODES} nodes, "
        f"batch {size.batch} per node, rate {size.rate:g}, "
        f"{size.seconds:g} virtual seconds at {COMPUTE.step} per gradient"
    )


if __name__ == "__main__":
    main()
