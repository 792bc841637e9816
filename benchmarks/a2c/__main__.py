"""How fast does HSA2C learn classic control, beside stable-baselines3's A2C?

Both in this process, torch with one thread, 8 environments for each thread of ours and 8 for theirs, networks of two
layers of 64 tanh for actor and critic, RMSprop in TensorFlow's form, the learning rate from 7e-4 to 0 over a million
steps. Solved is when the mean return of the last 100 episodes of training reaches gymnasium's threshold: 475 for
CartPole-v1, -100 for Acrobot-v1. Steps per second are taken in alternating turns, medians are told. What is compiled
is compiled before and told apart; with numba's cache that happens once on a machine.

Bars: 30 times their steps/s on one core; 1.8 times the steps/s with a second thread; every seed solves CartPole, with
one thread and with two; Acrobot solved 5 times sooner.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.a2c import ours, theirs
from benchmarks.a2c.course import ACROBOT, CARTPOLE, Course, Outcome
from benchmarks.report import Progress, arguments, finish

NAME = "benchmarks.a2c"
RESULTS = Path(__file__).parents[1] / "results"
ONE, TWO, SB3 = "HSA2C, 1 thread", "HSA2C, 2 threads", "stable-baselines3"
LEAST_SPEED, LEAST_THREADS, LEAST_SOONER = 30, 1.8, 5
LIMITS = {ONE: 20.0, TWO: 20.0, SB3: 100.0}
"""Seconds after which a training counts as failed."""

Rows = list[dict[str, Any]]


def ways() -> dict[str, Callable[..., Outcome]]:
    """Who trains."""
    return {
        ONE: partial(ours.train, threads=1),
        TWO: partial(ours.train, threads=2),
        SB3: theirs.train,
    }


def main() -> None:
    """Measure, and say what was met."""
    options = arguments(NAME, __doc__ or "").parse_args()
    torch.set_num_threads(1)
    quick = options.quick
    turns, seeds = (1, {CARTPOLE: 1, ACROBOT: 1}) if quick else (9, {CARTPOLE: 5, ACROBOT: 3})
    limits = LIMITS | (dict.fromkeys(LIMITS, 0.5) if quick else {})
    compiling = ours.compile_all()
    progress = Progress(turns + 3 * sum(seeds.values()))
    told = _speeds(turns, 32 if quick else 1, progress)
    for course, count in seeds.items():
        told += _races(course, range(count), limits, progress)
    figures = {"compile_seconds": round(compiling, 1), **_figures(told)}
    finish(
        NAME,
        told,
        figures=figures,
        met=_bars(figures, seeds[CARTPOLE]),
        folder=options.out or (None if quick else RESULTS),
        note=f"compiled, or read from the cache, in {compiling:.1f} s; a failed training counts with its time limit.",
    )


def _speeds(turns: int, part: int, progress: Progress) -> Rows:
    """Steps per second on CartPole, and the gain of a second thread within each turn; each so many times shorter."""
    steps = {ONE: 400_000 // part, TWO: 800_000 // part, SB3: 8_000 // part}
    seen: dict[str, list[float]] = {way: [] for way in steps}
    for turn in range(turns):
        progress(f"steps per second, turn {turn + 1}")
        for way, train in ways().items():
            outcome = train(CARTPOLE, seed=turn, seconds=60.0, steps=steps[way])
            seen[way].append(outcome.steps_per_second)
    gains = [two / one for one, two in zip(seen[ONE], seen[TWO], strict=True)]
    ratios = [one / sb3 for one, sb3 in zip(seen[ONE], seen[SB3], strict=True)]
    extra = {ONE: {"over theirs": _median(ratios)}, TWO: {"over one thread": _median(gains)}, SB3: {}}
    return [
        {"course": "CartPole-v1, speed", "way": way, "steps/s": round(_median(seen[way])), **extra[way]}
        for way in steps
    ]


def _races(course: Course, seeds: Sequence[int], limits: dict[str, float], progress: Progress) -> Rows:
    """Time to the threshold, a row for every seed."""
    told = []
    for seed in seeds:
        for way, train in ways().items():
            progress(f"{course.env}, {way}, seed {seed}")
            outcome = train(course, seed=seed, seconds=limits[way])
            told.append(
                {
                    "course": course.env,
                    "way": way,
                    "seed": seed,
                    "solved": outcome.solved,
                    "seconds": round(outcome.seconds, 3),
                    "steps": outcome.timesteps,
                    "steps/s": round(outcome.steps_per_second),
                    "mean return": round(outcome.mean_return, 1),
                }
            )
    return told


def _figures(told: Rows) -> dict[str, Any]:
    speed = {row["way"]: row for row in told if "speed" in row["course"]}
    figures: dict[str, Any] = {
        "steps_per_second": {way: row["steps/s"] for way, row in speed.items()},
        "per_core_over_sb3": round(speed[ONE]["over theirs"], 1),
        "two_threads_over_one": round(speed[TWO]["over one thread"], 2),
    }
    for course in (CARTPOLE, ACROBOT):
        runs = {way: [row for row in told if row["course"] == course.env and row["way"] == way] for way in speed}
        seconds = {way: _median([row["seconds"] for row in rows]) for way, rows in runs.items()}
        figures[course.env] = {
            "median_seconds": seconds,
            "solved": {way: f"{sum(row['solved'] for row in rows)} of {len(rows)}" for way, rows in runs.items()},
            "one_thread_sooner": round(seconds[SB3] / seconds[ONE], 1),
        }
    return figures


def _bars(figures: dict[str, Any], seeds: int) -> dict[str, bool]:
    per_core, gain = figures["per_core_over_sb3"], figures["two_threads_over_one"]
    solved, sooner = figures[CARTPOLE.env]["solved"], figures[ACROBOT.env]["one_thread_sooner"]
    every = f"{seeds} of {seeds}"
    return {
        f"CartPole: {per_core} times their steps/s on one core, at least {LEAST_SPEED}": per_core >= LEAST_SPEED,
        f"CartPole: {gain} times the steps/s with a second thread, at least {LEAST_THREADS}": gain >= LEAST_THREADS,
        f"CartPole solved by every seed: {solved[ONE]} with one thread, {solved[TWO]} with two": (
            solved[ONE] == solved[TWO] == every
        ),
        f"Acrobot solved {sooner} times sooner, at least {LEAST_SOONER}": sooner >= LEAST_SOONER,
    }


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
