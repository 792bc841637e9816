"""Does HSA2C solve continuous control, with observations and rewards that are normalized by what all threads have met?

Pendulum-v1 (a mean return of -200, which gymnasium has no threshold for), MountainCarContinuous-v0 (90) and
LunarLander-v3 (200; needs pip install "gymnasium[box2d]"), one thread of HSA2C beside stable-baselines3's A2C. A seed
has solved a task when the mean return of the last 100 episodes of training, with actions drawn at random, reaches it.
stable-baselines3 has the same settings and its VecNormalize, RMSprop in TensorFlow's form, torch with one thread; it
is given --limit seconds for each seed.

Bar: every seed of every task that was asked for is solved by HSA2C, sooner than by stable-baselines3 (median).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.a2c import ours, theirs
from benchmarks.a2c.course import Course, Outcome
from benchmarks.report import Progress, arguments, finish

NAME = "benchmarks.a2c.control"
RESULTS = Path(__file__).parents[1] / "results"
OURS, THEIRS = "HSA2C, 1 thread", "stable-baselines3"


@dataclass(frozen=True)
class Task:
    """What is to be learned, and with which numbers; both sides have the same."""

    course: Course
    settings: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "Pendulum-v1": Task(
        Course("Pendulum-v1", -200, 2_000_000),
        {"n_steps": 8, "gamma": 0.95, "gae_lambda": 0.95, "learning_rate": 2e-3},
    ),
    "MountainCarContinuous-v0": Task(
        Course("MountainCarContinuous-v0", 90, 1_000_000),
        {"n_steps": 8, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 2e-3, "ent_coef": 0.01},
    ),
    "LunarLander-v3": Task(
        Course("LunarLander-v3", 200, 3_000_000),
        {"n_steps": 8, "gamma": 0.999, "gae_lambda": 0.95, "learning_rate": 3e-3, "normalize_advantage": True},
    ),
}


def told(task: str, way: str, found: list[Outcome]) -> dict[str, Any]:
    """A row."""
    solved = [outcome for outcome in found if outcome.solved]
    return {
        "task": task,
        "way": way,
        "seeds": len(found),
        "solved": len(solved),
        "seconds": round(statistics.median(o.seconds for o in solved), 1) if solved else "",
        "steps": round(statistics.median(o.timesteps for o in solved)) if solved else "",
        "last return, median": round(statistics.median(o.mean_return for o in found), 1),
        "steps/s": round(statistics.median(o.steps_per_second for o in found)),
    }


def main() -> None:
    """Measure, and say what was met."""
    parser = arguments(NAME, __doc__ or "")
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS), help="(default: all)")
    parser.add_argument("--seeds", type=int, default=5, help="of each (default: 5)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of each seed (default: 300)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = ["Pendulum-v1"] if options.quick else options.tasks
    seeds, limit = (1, 8.0) if options.quick else (options.seeds, options.limit)
    both: dict[str, Any] = {"normalize_observations": True, "normalize_rewards": True}
    ways: dict[str, Callable[..., Outcome]] = {
        OURS: partial(ours.train, threads=1, **both),
        THEIRS: partial(theirs.train, normalize=True),
    }
    progress, rows = Progress(len(tasks) * seeds * len(ways)), []
    met: dict[str, bool] = {}
    for name in tasks:
        task, found = TASKS[name], {}
        for way, train in ways.items():
            outcomes = []
            for seed in range(seeds):
                progress(f"{name}, {way}, seed {seed}")
                outcomes.append(train(task.course, seed=seed, seconds=limit, **task.settings))
            found[way] = told(name, way, outcomes)
            rows.append(found[way])
        met |= judged(name, found[OURS], found[THEIRS], quick=options.quick)
    finish(NAME, rows, figures={"rows": rows}, met=met, folder=options.out or (None if options.quick else RESULTS))


def judged(task: str, ours: dict[str, Any], theirs: dict[str, Any], *, quick: bool) -> dict[str, bool]:
    """The bar of one task."""
    if quick:
        return {f"a quick run cannot judge: {task} solved by every seed": False}
    every, then = ours["solved"] == ours["seeds"], theirs["seconds"] or "more than the limit"
    sooner = every and (theirs["seconds"] == "" or ours["seconds"] < theirs["seconds"])
    return {
        f"{task} solved by {ours['solved']} of {ours['seeds']} seeds": every,
        f"{task} after {ours['seconds']} s, stable-baselines3 after {then}": sooner,
    }


if __name__ == "__main__":
    main()
