"""Callbacks that look at the model while it is trained, under the names that stable-baselines3 has for them.

Any function of a row of the history is a callback. These have a method ``begin`` besides, which ``HSA2C.learn`` calls
with the model before it trains. What they see is a snapshot: other threads train on meanwhile, and the policy that is
saved must be the one that was played.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flockstep import check
from flockstep.rl.reporting.evaluation import Evaluation
from flockstep.rl.reporting.history import Row

if TYPE_CHECKING:
    from flockstep.rl.hsa2c import HSA2C


class _Periodic:
    """Looks at the model at the first row at or after every multiple of ``steps``."""

    def __init__(self, steps: int, verbose: int) -> None:
        self._steps, self.verbose = steps, check.whole(self, "verbose", verbose, at_least=0)
        self._model: HSA2C | None = None

    def begin(self, model: HSA2C) -> None:
        """Training of ``model`` begins."""
        self._model, self._every = model, Every(self._steps, model.num_timesteps)

    def __call__(self, row: Row) -> bool | None:
        """One more row."""
        if self._model is None:
            raise RuntimeError(f"{type(self).__name__} is for HSA2C.learn, which tells it what is trained")
        return self._look(self._model, row.timesteps) if self._every.due(row.timesteps) else None

    def _look(self, model: HSA2C, timesteps: int) -> bool | None:
        raise NotImplementedError

    def _say(self, timesteps: int, what: str) -> None:
        if self.verbose:
            # As others print, so that a progress bar makes room for it.
            print(f"{timesteps:,} steps: {what}", file=sys.stderr)


class EvalCallback(_Periodic):
    """Plays whole episodes every so many steps of training, and keeps the best model.

    It plays in an environment of its own and disturbs no random number of training. ``evaluations`` has what was found,
    and after how many steps.

    Args:
        eval_env: An id, a function that makes an environment, or one that gymnasium made. None: a copy of the one that
            is trained on.
        n_eval_episodes: Episodes that are played each time.
        eval_freq: Environment steps of all threads together between two evaluations.
        best_model_save_path: Folder where the best model so far is kept, as ``best_model.safetensors`` for
            ``HSA2C.load``. None: it is not.
        deterministic: Whether the likeliest action is taken; False: actions are drawn, as in training.
        reward_threshold: Mean return that ends the training. None: none does.
        seed: Seed that makes the episodes the same every time. None: others every time.
        verbose: 1 prints a line for each evaluation; 0 prints none.

    Example:
        looking = EvalCallback(eval_freq=20_000, best_model_save_path="best", reward_threshold=475)
        model.learn(500_000, callback=looking)
    """

    def __init__(
        self,
        eval_env: Any = None,
        *,
        n_eval_episodes: int = 5,
        eval_freq: int = 10_000,
        best_model_save_path: str | Path | None = None,
        deterministic: bool = True,
        reward_threshold: float | None = None,
        seed: int | None = None,
        verbose: int = 1,
    ) -> None:
        super().__init__(check.whole(self, "eval_freq", eval_freq), verbose)
        self._episodes = check.whole(self, "n_eval_episodes", n_eval_episodes)
        self._threshold = None if reward_threshold is None else check.real(self, "reward_threshold", reward_threshold)
        self._seed = None if seed is None else check.whole(self, "seed", seed, at_least=0)
        self._env, self._deterministic = eval_env, deterministic
        self._folder = None if best_model_save_path is None else Path(best_model_save_path)
        self.evaluations: list[tuple[int, Evaluation]] = []
        """Of each: after how many steps of training, and what was found."""
        self.best_mean_reward = self.last_mean_reward = -math.inf

    def _look(self, model: HSA2C, timesteps: int) -> bool | None:
        still = model.snapshot()
        found = still.evaluate(self._episodes, deterministic=self._deterministic, seed=self._seed, env=self._env)
        self.evaluations.append((timesteps, found))
        self.last_mean_reward = found.mean
        if model.board is not None:
            model.board.put("eval/mean_reward", found.mean, timesteps)
            model.board.put("eval/mean_ep_length", sum(found.lengths) / len(found.lengths), timesteps)
        best = found.mean > self.best_mean_reward
        self._say(timesteps, f"evaluation {found}{', the best so far' if best else ''}")
        if best:
            self.best_mean_reward = found.mean
            if self._folder is not None:
                still.save(self._folder / "best_model.safetensors")
        return None if self._threshold is None else found.mean < self._threshold


class CheckpointCallback(_Periodic):
    """Saves the model every so many steps of training: ``save_path/rl_model_20000_steps.safetensors``.

    Args:
        save_freq: Environment steps of all threads together between two files.
        save_path: Folder for the files.
        name_prefix: What their names begin with.
        verbose: 1 prints a line for each file; 0 prints none.

    Example:
        model.learn(500_000, callback=CheckpointCallback(100_000, "checkpoints"))
    """

    def __init__(
        self, save_freq: int, save_path: str | Path, *, name_prefix: str = "rl_model", verbose: int = 0
    ) -> None:
        super().__init__(check.whole(self, "save_freq", save_freq), verbose)
        self._folder, self._prefix = Path(save_path), name_prefix

    def _look(self, model: HSA2C, timesteps: int) -> None:
        path = model.snapshot().save(self._folder / f"{self._prefix}_{timesteps}_steps.safetensors")
        self._say(timesteps, f"saved to {path}")


class Every:
    """Rows come in bursts of steps: where one passes several multiples at once, that counts once."""

    def __init__(self, steps: int, since: int = 0) -> None:
        self._steps = steps
        self._next = self._after(since)

    def due(self, timesteps: int) -> bool:
        """Whether it is time; if so, the next time is later."""
        if timesteps < self._next:
            return False
        self._next = self._after(timesteps)
        return True

    def _after(self, timesteps: int) -> int:
        return (timesteps // self._steps + 1) * self._steps
