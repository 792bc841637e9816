"""A small LSTM whose gradients have heavy tails: which of the methods for heavy tails trains it?

Four nodes on a ring train a character LSTM on Shakespeare, with Student-t noise of 1.5 degrees of freedom (no variance)
on every coordinate of every gradient, and without it, to see what the noise costs. Each method runs with a few
settings on one seed; the one whose validation loss is least at the end, under noise, runs on more. See README.md beside
this file.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import flockstep as fs
from benchmarks.report import Progress, arguments, finish, keep
from experiments.sclip_language.picture import draw
from flockstep.strategy import Strategy, describe
from flockstep.workloads.language import CharLSTM
from flockstep.workloads.noises import StudentT
from flockstep.workloads.noisy import Noisy
from flockstep.workloads.workload import Workload

NAME = "experiments.sclip_language"
HERE = Path(__file__).parent
NODES, DF, SCALE = 4, 1.5, 1e-3
RING = fs.topologies.Ring()
MIXED = fs.averages.Mixed(topology=RING, codec=fs.codecs.Raw())


@dataclass(frozen=True)
class Setting:
    """A method with its numbers."""

    method: str
    strategy: Strategy
    rate: float

    def __str__(self) -> str:
        return f"{describe(self.strategy)}, learning rate {self.rate:g}"


def _sclip(width: float, gain: float) -> fs.SClipEFNetwork:
    """By the rule of the paper: sqrt(tau) as large as a coordinate, c_phi so that small ones go on times ``gain``."""
    return fs.SClipEFNetwork(clip=fs.clips.SmoothClip(c_phi=gain * width, tau=width**2), topology=RING)


SETTINGS = [
    *[Setting("SGD", fs.LocalSGD(period=1, average=MIXED), rate) for rate in (0.25, 1.0, 4.0, 16.0)],
    *[
        Setting("clipped SGD", fs.LocalSGD(period=1, clip=fs.clips.ClipNorm(max_norm=norm), average=MIXED), rate)
        for norm in (0.1, 0.5, 2.0)
        for rate in (1.0, 4.0)
    ],
    *[Setting("GT-NSGDm", fs.GTNSGDm(topology=RING), rate) for rate in (0.03, 0.1, 0.3, 1.0)],
    *[Setting("SClip-EF", _sclip(width, gain), 1.0) for width in (1e-3, 1e-2) for gain in (4.0, 32.0, 256.0, 2048.0)],
]
METHODS = list(dict.fromkeys(setting.method for setting in SETTINGS))


@dataclass(frozen=True)
class Run:
    """One training, to its end or until its loss was no number any more."""

    setting: Setting
    noisy: bool
    seed: int
    curve: list[tuple[int, float]]
    """Validation loss after so many steps."""

    @property
    def loss(self) -> float:
        """At the end; infinite if it diverged."""
        return self.curve[-1][1]


def train(setting: Setting, workload: Workload, *, noisy: bool, steps: int, seed: int) -> Run:
    """Train by one setting."""
    curve: list[tuple[int, float]] = []
    try:
        fs.simulate(
            setting.strategy,
            workload,
            nodes=NODES,
            steps=steps,
            optimizer=partial(torch.optim.SGD, lr=setting.rate),
            record_every=max(1, steps // 10),
            seed=seed,
            on_row=lambda row: curve.append((row.step, row.loss)),
        )
    except fs.FlockstepError as error:
        # A codec refuses numbers that are not finite, and the recorder a loss that is not.
        if not isinstance(error, fs.Diverged) and "finite" not in str(error):
            raise
        curve.append((steps, math.inf))
    return Run(setting, noisy, seed, curve)


def row(setting: Setting, runs: list[Run]) -> dict[str, Any]:
    """A method at its best setting, as it is kept."""
    noisy = sorted(run.loss for run in runs if run.noisy)
    quiet = sorted(run.loss for run in runs if not run.noisy)
    return {
        "method": setting.method,
        "noisy": round(statistics.median(noisy), 3),
        "least": round(noisy[0], 3),
        "most": round(noisy[-1], 3),
        "without noise": round(statistics.median(quiet), 3),
        "best setting under noise": str(setting),
    }


def points(run: Run) -> list[dict[str, Any]]:
    """A run's curve as it is kept."""
    told = {"method": run.setting.method, "noise": run.noisy, "seed": run.seed}
    return [{**told, "step": step, "validation loss": round(loss, 4)} for step, loss in run.curve]


def main() -> None:
    """Choose a setting for each method, then run it on all seeds."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the chosen settings (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps, seeds, hidden = (6, 1, 16) if options.quick else (500, options.seeds, 64)
    plain = CharLSTM(batch=8, length=32, hidden=hidden)
    heavy = Noisy(workload=plain, noise=StudentT(df=DF), scale=SCALE)
    progress = Progress(len(SETTINGS) + len(METHODS) * (2 * seeds - 1))
    tried: list[Run] = []
    for setting in SETTINGS:
        progress(str(setting))
        tried.append(train(setting, heavy, noisy=True, steps=steps, seed=0))
    best = {
        method: min((run for run in tried if run.setting.method == method), key=lambda r: r.loss) for method in METHODS
    }
    runs: dict[str, list[Run]] = {method: [run] for method, run in best.items()}
    for method, found in best.items():
        for seed in range(seeds):
            for noisy, workload in ((True, heavy), (False, plain)):
                if seed or not noisy:
                    progress(f"{method}, seed {seed}, {'noise' if noisy else 'no noise'}")
                    runs[method].append(train(found.setting, workload, noisy=noisy, steps=steps, seed=seed))
    rows = [row(best[method].setting, runs[method]) for method in METHODS]
    losses = {each["method"]: each["noisy"] for each in rows}
    begin = statistics.median(run.curve[0][1] for run in tried)
    folder = options.out or (None if options.quick else HERE)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        draw(runs, folder / "sclip_language.png", begin)
        keep(f"{NAME}_curves", [point for each in runs.values() for run in each for point in points(run)], folder)
    finish(
        NAME,
        rows,
        figures={"start": round(begin, 3), "loss": losses, "tried": {str(r.setting): round(r.loss, 3) for r in tried}},
        met={
            f"GT-NSGDm trains: {losses['GT-NSGDm']} from {begin:.3f}, a third of a nat or more": losses["GT-NSGDm"]
            < begin - 1 / 3,
            f"clipped SGD trains: {losses['clipped SGD']} from {begin:.3f}": losses["clipped SGD"] < begin - 1 / 3,
        },
        folder=folder,
        note=f"{NODES} nodes on a ring, {steps} steps, Student-t({DF}) noise at {SCALE}, median of {seeds} seed(s).",
    )


if __name__ == "__main__":
    main()
