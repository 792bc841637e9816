"""HSA2C's worker as a workload: what its threads do between two exchanges with the server is one step.

    u <- x;   p threads, B updates each, without a lock:  s <- decay s + (1 - decay) g^2;  u <- u - lr g / sqrt(s + eps)
    gradient(x) = x - u,   so that a step of plain SGD with learning rate 1 arrives at u

The statistics s stay in the worker. A node's step then takes milliseconds of compiled work and costs one message.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.rl.compiled.worker import Worker
from flockstep.rl.mlp import MlpPolicy
from flockstep.rl.settings import Settings
from flockstep.rl.workload import ActorCritic

ARRIVE = partial(torch.optim.SGD, lr=1.0)
"""The optimizer that these steps are for."""


class ActorCriticBursts(ActorCritic):
    """``settings.threads`` threads of ``settings.local_updates`` updates each; use with ``optimizer=ARRIVE``.

    The learning rate falls to 0 over ``total_timesteps`` of all nodes together, of which each takes an equal part.
    """

    leaves_interpreter_lock = False

    def __init__(
        self,
        *,
        env: Any,
        total_timesteps: int,
        settings: Settings | None = None,
        policy: MlpPolicy | None = None,
        episodes: int = 20,
        seed: int = 0,
    ) -> None:
        super().__init__(env=env, settings=settings, policy=policy, episodes=episodes, seed=seed)
        self.total_timesteps = check.whole(self, "total_timesteps", total_timesteps)
        self._workers: list[Worker] = []
        self._squares = np.ones(self.plan.size, np.float32)
        self._nodes, self._done = 1, 0

    @property
    def timesteps(self) -> int:
        """Environment steps behind one step of a node."""
        return self.settings.threads * self.settings.local_updates * self.settings.steps_per_update

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Minus the change that one burst makes."""
        if not self._workers:
            self._workers = [self._new_worker(own) for own in (rng, *rng.spawn(self.settings.threads - 1))]
        theta = x.numpy().copy()
        rates = self._rates()
        if len(self._workers) == 1:
            self._workers[0].train(theta, self._squares, rates)
        else:
            with ThreadPoolExecutor(len(self._workers)) as pool:
                for work in [pool.submit(w.train, theta, self._squares, rates) for w in self._workers]:
                    work.result()
        for worker in self._workers:
            worker.drain()
        self._done += self.timesteps
        return x - torch.from_numpy(theta)

    def shard(self, rank: int, size: int) -> Self:
        """The same with environments and statistics of its own."""
        twin = super().shard(rank, size)
        twin._workers, twin._squares, twin._nodes, twin._done = [], np.ones_like(self._squares), size, 0
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_workers": []}

    def _rates(self) -> Any:
        """The learning rates of a burst, falling as if the other nodes were as far as this one."""
        per_update = self.settings.threads * self.settings.steps_per_update
        done = (self._done + per_update * np.arange(self.settings.local_updates)) * self._nodes
        remaining = np.clip(1 - done / self.total_timesteps, 0.0, 1.0)
        return np.array([self.settings.rate(share) for share in remaining.tolist()])
