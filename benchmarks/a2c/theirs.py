"""stable-baselines3's A2C on a course, with the optimizer and the count of environments it is known to do best with."""

from __future__ import annotations

import time
import warnings
from typing import Any

from benchmarks.a2c.course import WINDOW, Course, Outcome

ENVS = 8
RATE = 7e-4


def train(
    course: Course,
    *,
    seed: int,
    seconds: float,
    steps: int | None = None,
    normalize: bool = False,
    learning_rate: float = RATE,
    **settings: Any,
) -> Outcome:
    """Until the threshold or for so long; with ``steps``, so many and whatever the return.

    Environments in this process, which for cheap ones is faster than processes; RMSprop in TensorFlow's form, and the
    learning rate to 0 linearly, as ours has it.
    """
    with warnings.catch_warnings():
        # Parts of torch that it imports warn of their own old age.
        warnings.simplefilter("ignore")
        from stable_baselines3 import A2C
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
        from stable_baselines3.common.vec_env import VecNormalize

        class Watch(BaseCallback):
            """Ends the training at the threshold."""

            solved = False

            def _on_step(self) -> bool:
                return not self.solved and (steps is not None or time.perf_counter() - began < seconds)

            def _on_rollout_end(self) -> None:
                self.solved = steps is None and full(self.model) and mean(self.model) >= course.threshold

        games: Any = make_vec_env(course.env, n_envs=ENVS, seed=seed)
        model = A2C(
            "MlpPolicy",
            VecNormalize(games, gamma=settings["gamma"]) if normalize else games,
            learning_rate=lambda remaining: learning_rate * remaining,
            policy_kwargs={"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5}},
            seed=seed,
            device="cpu",
            **settings,
        )
        watch = Watch()
        began = time.perf_counter()
        model.learn(course.timesteps if steps is None else steps, watch)
        return Outcome(watch.solved, time.perf_counter() - began, model.num_timesteps, mean(model))


def full(model: Any) -> bool:
    """Whether as many episodes have ended as a mean is taken over."""
    return len(model.ep_info_buffer or ()) >= WINDOW


def mean(model: Any) -> float:
    """The mean return of the last of them."""
    returns = [episode["r"] for episode in model.ep_info_buffer or ()]
    return sum(returns) / len(returns) if returns else float("nan")
