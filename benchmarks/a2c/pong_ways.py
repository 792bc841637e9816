"""The ways to train on Pong that are compared: each is made once and then trains for some seconds at a time."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from benchmarks.a2c.pong_environments import Batch, Single
from flockstep.rl.environments.atari import atari
from flockstep.rl.nets.torch_engine import TorchEngine
from flockstep.rl.policies.networks import POLICIES
from flockstep.rl.settings import Settings

FOREVER = 10**9


class Way(Protocol):
    """Something that takes environment steps."""

    name: str

    def run(self, seconds: float) -> float:
        """Steps per second."""

    def close(self) -> None:
        """Leave nothing behind."""


class Ours:
    """HSA2C with the torch engine, a process per core."""

    def __init__(self, policy: str, processes: int, envs: int) -> None:
        self.name = f"HSA2C {policy}, {processes} process{'es' * (processes > 1)}, {envs} envs each"
        screen = atari("Pong", 1)
        torch.manual_seed(0)
        module = POLICIES[policy](screen.observations, screen.actions)
        settings = Settings(threads=processes, envs_per_thread=envs, period=10)
        self._engine = TorchEngine(module, partial(atari, "Pong", envs), settings)

    def run(self, seconds: float) -> float:
        """From the first order to the last update."""
        began = time.perf_counter()
        steps = self._engine.train(since=0, until=FOREVER, tell=lambda tally: time.perf_counter() < began + seconds)
        return steps / (time.perf_counter() - began)

    def close(self) -> None:
        """End the processes."""
        self._engine.close()


class Theirs:
    """stable-baselines3's A2C with its defaults."""

    def __init__(self, kind: str, envs: int, threads: int) -> None:
        self.name = f"SB3 {kind}, {envs} envs, {threads} torch thread{'s' * (threads > 1)}"
        self._threads = threads
        torch.set_num_threads(threads)
        self._environments = _vectorized(kind, envs)
        self._model = A2C("CnnPolicy", self._environments, device="cpu", seed=0)

    def run(self, seconds: float) -> float:
        """From the first step to the last update."""
        torch.set_num_threads(self._threads)
        before, began = self._model.num_timesteps, time.perf_counter()
        self._model.learn(FOREVER, callback=_Until(began + seconds), reset_num_timesteps=False, log_interval=FOREVER)
        return (self._model.num_timesteps - before) / (time.perf_counter() - began)

    def close(self) -> None:
        """End the environments."""
        self._environments.close()


class Emulator:
    """Nothing but the emulator, with random actions: no method can be faster on one core."""

    def __init__(self, envs: int) -> None:
        self.name = f"emulator alone, {envs} envs, 1 core"
        self._games, self._rng = atari("Pong", envs), np.random.default_rng(0)
        self._games.reset(seed=0)

    def run(self, seconds: float) -> float:
        """Steps of all games."""
        began, steps = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            self._games.step(self._rng.integers(0, self._games.actions.size, self._games.count))
            steps += self._games.count
        return steps / (time.perf_counter() - began)

    def close(self) -> None:
        """End the games."""
        self._games.close()


class _Until(BaseCallback):
    """Ends training after a whole update."""

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self._deadline = deadline

    def _on_step(self) -> bool:
        # Asked at the first step of a roll-out, so that the one before was learned from.
        return self.locals.get("n_steps", 0) > 0 or time.perf_counter() < self._deadline


def _vectorized(kind: str, envs: int) -> VecEnv:
    if kind == "batched":
        return Batch(envs)
    makers: list[Any] = [Single] * envs
    return DummyVecEnv(makers) if kind == "DummyVecEnv" else SubprocVecEnv(makers)
