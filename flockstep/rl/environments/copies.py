"""Several copies of an environment, stepped together in this process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flockstep import check
from flockstep.rl.environments.spaces import Actions, Observations

Source = str | Callable[[], Any]
"""A gymnasium id, or a function that makes an environment."""


@dataclass(frozen=True)
class Step:
    """What one step of all copies gave. Ended episodes have begun anew."""

    observations: NDArray[Any]
    """To act on next."""
    rewards: NDArray[Any]
    terminated: NDArray[Any]
    truncated: NDArray[Any]
    finals: NDArray[Any]
    """Where the step led to: the episode's last observation where it ended, else as ``observations``."""
    counts: NDArray[Any]
    """False where a copy only began a new episode, whatever it was told to do."""


class Environments(Protocol):
    """What an engine steps."""

    count: int
    observations: Observations
    actions: Actions
    spaces: tuple[Any, Any]
    """Of observations and of actions, as gymnasium has them."""

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Begin new episodes; with a seed, always the same ones."""

    def step(self, drawn: NDArray[Any]) -> Step:
        """Step every copy; actions as a policy draws them, from 0 and unbounded."""

    def close(self) -> None:
        """Let go of windows and emulators."""


class InProcess:
    """gymnasium environments one after another: for cheap ones this is faster than processes."""

    def __init__(self, source: Source, count: int, first: Any = None) -> None:
        """``first`` is one that was made already."""
        self.count = count
        begun = [] if first is None else [first]
        self._copies = begun + [single(source) for _ in range(count - len(begun))]
        self.spaces = self._copies[0].observation_space, self._copies[0].action_space
        self.observations, self.actions = Observations.of(self.spaces[0]), Actions.of(self.spaces[1])

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Copy i begins with ``seed + i``."""
        seeds = [None if seed is None else seed + i for i in range(self.count)]
        return self._rows([copy.reset(seed=s)[0] for copy, s in zip(self._copies, seeds, strict=True)])

    def step(self, drawn: NDArray[Any]) -> Step:
        """Step one by one; those that ended are reset at once."""
        results = [c.step(a) for c, a in zip(self._copies, self.actions.decode(drawn), strict=True)]
        terminated = np.array([t[2] for t in results], bool)
        truncated = np.array([t[3] for t in results], bool)
        finals = observations = self._rows([t[0] for t in results])
        if (ended := terminated | truncated).any():
            observations = finals.copy()
            for i in np.flatnonzero(ended):
                observations[i] = self._rows([self._copies[i].reset()[0]])[0]
        rewards = np.array([t[1] for t in results], np.float64)
        return Step(observations, rewards, terminated, truncated, finals, np.ones(self.count, bool))

    def close(self) -> None:
        """Close every copy."""
        for copy in self._copies:
            copy.close()

    def _rows(self, observations: Sequence[Any]) -> NDArray[Any]:
        return self.observations.encode(np.stack(observations))


class Envpool:
    """A batch of envpool, which begins a new episode in the step after one has ended."""

    def __init__(self, name: str, count: int, seed: int = 0) -> None:
        self.count, self._name, self._seed = count, name, seed
        self._pool = self._make(seed)
        self.spaces = self._pool.observation_space, self._pool.action_space
        self.observations, self.actions = Observations.of(self.spaces[0]), Actions.of(self.spaces[1])
        self._ended = np.zeros(count, bool)

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Begin new episodes; a pool's seed is that of its making, so with one it is made anew."""
        if seed is not None and seed != self._seed:
            self._pool, self._seed = self._make(seed), seed
        self._ended[:] = False
        return self.observations.encode(self._pool.reset()[0])

    def step(self, drawn: NDArray[Any]) -> Step:
        """One step of the pool; where an episode had ended before, the action counts for nothing."""
        observations, rewards, terminated, truncated, _ = self._pool.step(self.actions.decode(drawn))
        rows, counts = self.observations.encode(observations), ~self._ended
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        self._ended = terminated | truncated
        return Step(rows, np.asarray(rewards, np.float64), terminated, truncated, rows, counts)

    def close(self) -> None:
        """End the pool's threads."""
        self._pool.close()

    def _make(self, seed: int) -> Any:
        envpool = needed("envpool")
        check.one_of("HSA2C", "env", self._name, tuple(envpool.list_all_envs()))
        return envpool.make_gymnasium(self._name, num_envs=self.count, seed=seed, num_threads=1)


def single(source: Any, **options: Any) -> Any:
    """One environment; ``options`` such as ``render_mode`` are for ids only."""
    one = made(source, **options)
    if is_vector(one):
        one.close()
        raise ValueError(
            f"HSA2C.env must make one environment for this, and makes {one.num_envs} at once\n"
            "  HSA2C.set_env takes an id, or a function that makes one"
        )
    return one


def made(source: Any, **options: Any) -> Any:
    """One environment, or a vector of them where a function makes that."""
    if callable(source):
        env = source()
    else:
        gymnasium = needed("gymnasium")
        unknown = isinstance(source, str) and source not in gymnasium.registry
        # Atari's are there once they are asked for; PongNoFrameskip-v4 does not say whose it is.
        if unknown and (source.startswith("ALE/") or find_spec("ale_py")):
            gymnasium.register_envs(needed("ale_py"))
        try:
            env = gymnasium.make(source, **options)
        except gymnasium.error.DependencyNotInstalled as error:
            raise ImportError(str(error)) from error
        except gymnasium.error.Error as error:
            raise ValueError(f"HSA2C.env must be an environment that gymnasium knows: {error}") from error
    check.has("HSA2C.env", "result", env, "reset", "step", kind="a gymnasium environment")
    _refuse_vec_env(env)
    return env


def is_vector(env: Any) -> bool:
    """Whether this is several environments in one, as gymnasium has them."""
    return hasattr(env, "num_envs") and hasattr(env, "single_action_space")


def source_of(env: Any) -> Any:
    """What copies are made from: an id or a function as it is, of an environment its specification."""
    if isinstance(env, str) or callable(env):
        return env
    _refuse_vec_env(env)
    spec = getattr(env, "spec", None)
    if is_vector(env) and spec is not None:
        if env.unwrapped is not env:
            raise TypeError(
                f"HSA2C.env must be a function that makes the vector environment and wraps it, got {env!r}\n"
                "  what it was made from knows nothing of its wrappers"
            )
        return partial(needed("gymnasium").make_vec, spec)
    if spec is None:
        raise TypeError(
            f"HSA2C.env must be a gymnasium id or a function that makes an environment, got {env!r}\n"
            "  every thread steps several copies, and this one cannot be made again"
        )
    return spec


def _refuse_vec_env(env: Any) -> None:
    """By name: stable-baselines3 need not be there to be refused."""
    for kind in type(env).__mro__:
        if kind.__name__ == "VecEnv" and kind.__module__.startswith("stable_baselines3."):
            raise TypeError(
                f"HSA2C.env must be an id or a function that makes one environment, in place of stable-baselines3's "
                f"{type(env).__name__}: give that, and envs_per_thread={env.num_envs}"
            )


def needed(package: str) -> Any:
    """An optional package, or an error that says how to get it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        root = package.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != root:
            raise
        hints = {"ale_py": "ale-py", "envpool": "envpool", "tensorboard": "tensorboard"}
        line = f"pip install {hints[root]}" if root in hints else 'pip install "flockstep[rl]"'
        raise ModuleNotFoundError(f"HSA2C needs {root} for this: {line}", name=root) from error
