"""One training with normalized observations and rewards, by HSA2C and by stable-baselines3's A2C."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

from benchmarks.a2c.course import WINDOW, Course, Outcome
from benchmarks.a2c.theirs import ENVS, full, mean
from flockstep.rl import HSA2C, Row


def ours(course: Course, settings: Mapping[str, Any], *, seed: int, seconds: float) -> Outcome:
    """Until the threshold, the steps or the time is reached."""
    model = HSA2C(
        "MlpPolicy", course.env, normalize_observations=True, normalize_rewards=True, seed=seed, **dict(settings)
    )
    # What a first call compiles is no part of learning.
    model.evaluate(1)
    solved, last = False, float("nan")
    began = time.perf_counter()

    def callback(row: Row) -> bool:
        nonlocal solved, last
        last = row.mean_return
        solved = row.episodes >= WINDOW and row.mean_return >= course.threshold
        return not solved and time.perf_counter() - began < seconds

    model.learn(course.timesteps, callback)
    spent = time.perf_counter() - began
    model.close()
    return Outcome(solved, spent, model.num_timesteps, last)


def theirs(course: Course, settings: Mapping[str, Any], *, seed: int, seconds: float) -> Outcome:
    """The same; the learning rate falls to 0 over the steps, as ours does."""
    with warnings.catch_warnings():
        # Parts of torch that it imports warn of their own old age.
        warnings.simplefilter("ignore")
        from stable_baselines3 import A2C
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
        from stable_baselines3.common.vec_env import VecNormalize

        numbers = dict(settings)
        rate = numbers.pop("learning_rate")

        class Watch(BaseCallback):
            """Ends the training at the threshold."""

            solved = False

            def _on_step(self) -> bool:
                return not self.solved and time.perf_counter() - began < seconds

            def _on_rollout_end(self) -> None:
                self.solved = full(self.model) and mean(self.model) >= course.threshold

        model = A2C(
            "MlpPolicy",
            VecNormalize(make_vec_env(course.env, n_envs=ENVS, seed=seed), gamma=numbers["gamma"]),
            learning_rate=lambda remaining: rate * remaining,
            policy_kwargs={"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5}},
            seed=seed,
            device="cpu",
            **numbers,
        )
        watch = Watch()
        began = time.perf_counter()
        model.learn(course.timesteps, watch)
        return Outcome(watch.solved, time.perf_counter() - began, model.num_timesteps, mean(model))
