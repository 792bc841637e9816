"""HSA2C on a course."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.a2c.course import WINDOW, Course, Outcome
from flockstep.rl import HSA2C, Row


def train(
    course: Course, *, threads: int, seed: int, seconds: float, steps: int | None = None, **settings: Any
) -> Outcome:
    """Until the threshold or for so long; with ``steps``, so many and whatever the return."""
    model = HSA2C("MlpPolicy", course.env, threads=threads, seed=seed, **settings)
    # What a first call sets up is no part of learning.
    model.evaluate(1)
    solved, mean = False, float("nan")
    began = time.perf_counter()

    def callback(row: Row) -> bool:
        nonlocal solved, mean
        mean = row.mean_return
        solved = steps is None and row.episodes >= WINDOW and row.mean_return >= course.threshold
        return not solved and time.perf_counter() - began < seconds

    model.learn(course.timesteps if steps is None else steps, callback)
    spent = time.perf_counter() - began
    model.close()
    return Outcome(solved, spent, model.num_timesteps, mean)


def compile_all() -> float:
    """Seconds until everything is compiled, or read from the cache of an earlier time."""
    began = time.perf_counter()
    HSA2C("MlpPolicy", "CartPole-v1", seed=0).learn(1000)
    return time.perf_counter() - began
