"""CELGC against naive parallel clipping: an LSTM on WikiText-2, eight virtual nodes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from benchmarks import report
from experiments.celgc_wikitext2 import picture, verdict
from experiments.celgc_wikitext2.record import Record
from experiments.celgc_wikitext2.settings import NODES, SIZES, Size
from experiments.celgc_wikitext2.training import jobs, run_all

NAME = "experiments.celgc_wikitext2"
DESCRIPTION = """\
An LSTM on WikiText-2, eight virtual nodes: gradients averaged and clipped at every step ("naive parallel clip") against
CELGC with models averaged every 4 and every 16 steps. Equal data; the learning rate of each method is the best of one
grid. Needs the data folder: set FLOCKSTEP_DATA to the folder that has wikitext-2 in it.

Bars: perplexity of I=16 within 3% of the baseline's, with 16 times fewer bytes sent."""


def main() -> None:
    """Train the grid, or read the kept rows; then tell."""
    options = _options()
    size, folder = _size(options), _folder(options)
    if options.redraw:
        record = Record.load(size.name, options.out or Path(__file__).parent)
    else:
        record = _train(size, folder)
    _tell(record, size, folder)


def _options() -> argparse.Namespace:
    parser = report.arguments(NAME, DESCRIPTION)
    parser.add_argument("--size", choices=SIZES, default="small", help="'paper' is 3 layers of 1150 and wants a GPU")
    parser.add_argument("--steps", type=int, help="steps of each node; a multiple of 16, so that no round stays open")
    parser.add_argument("--rates", type=float, nargs="+", help="the grid of learning rates")
    parser.add_argument("--constant", action="store_true", help="do not let the rate go down; rows are kept apart")
    parser.add_argument("--seed", type=int, help="of weights, shards and batches; other than 0, rows are kept apart")
    parser.add_argument("--workers", type=int, help="how many runs at a time")
    parser.add_argument("--device", help="a torch device such as cpu or cuda")
    parser.add_argument("--redraw", action="store_true", help="train nothing: table and picture from the kept rows")
    options = parser.parse_args()
    if options.steps is not None and (options.steps < 16 or options.steps % 16):
        parser.error(f"--steps must be a multiple of 16, got {options.steps}")
    return options


def _size(options: argparse.Namespace) -> Size:
    size = SIZES[options.size]
    if options.quick:
        size = size.quick()
    if options.constant:
        size = replace(size, name=f"{size.name}_constant", decay=0.0)
    if options.seed:
        size = replace(size, name=f"{size.name}_seed{options.seed}")
    given = {name: getattr(options, name) for name in ("steps", "rates", "seed", "workers", "device")}
    return replace(size, **{name: value for name, value in given.items() if value is not None})


def _folder(options: argparse.Namespace) -> Path | None:
    folder: Path | None = options.out
    if folder is None and not options.quick:
        folder = Path(__file__).parent
    return folder


def _train(size: Size, folder: Path | None) -> Record:
    grid, record = jobs(size), Record(size.name, folder)
    points_per_run = -(-size.steps // size.record_every) + 1
    progress = report.Progress(len(grid) * points_per_run)

    def on_point(point: verdict.Figures) -> None:
        record.add_point(point)
        progress("{method}, rate {rate:g}: perplexity {perplexity:.4g} at step {step}".format(**point))

    for run in run_all(grid, size.workers, on_point):
        record.add_run(run)
        print(f"{run['method']}, rate {run['rate']:g}: final perplexity {run['perplexity']:.5g}", file=sys.stderr)
    return record


def _tell(record: Record, size: Size, folder: Path | None) -> None:
    rows = verdict.side_by_side(record)
    print(report.table(verdict.grid(record), "every run of the grid"))
    print()
    title = _title(record, size)
    if folder is not None and find_spec("matplotlib"):
        print(f"picture: {picture.draw(record, folder / f'{size.name}.png', title)}")
    figures = {row["method"]: {k: v for k, v in row.items() if k != "method"} for row in rows}
    report.finish(NAME, rows, figures={"size": size.name, **figures}, met=verdict.judge(rows), folder=None, note=title)


def _title(record: Record, size: Size) -> str:
    run = record.runs[0]
    return (
        f"WikiText-2, LSTM of {run['parameters'] / 1e6:.1f} M parameters, {NODES} nodes, {run['steps']:.0f} steps, "
        f"{run['epochs']:.2g} epochs\nvirtual time: {size.bandwidth} links, {size.latency} latency, "
        f"{size.gradient_time} per gradient"
    )


if __name__ == "__main__":
    main()
