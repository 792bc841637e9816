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

from flockstep.rl.compiled.compiled_worker import Worker
from flockstep.rl.nodes.workload import ActorCritic
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.settings import Settings

ARRIVE = partial(torch.optim.SGD, lr=1.0)
"""The optimizer that these steps are for."""


class ActorCriticBursts(ActorCritic):
    """``settings.threads`` threads of ``settings.period`` updates each; use with ``optimizer=ARRIVE``.

    A burst's learning rate is that of its beginning, by what all nodes together have done of the run: if one dies, the
    others' rates fall as slowly as the work then goes on.
    """

    leaves_interpreter_lock = False
    # What threads have met is added to what others have, as their changes are.
    shares_statistics = True

    def __init__(
        self,
        *,
        env: Any,
        settings: Settings | None = None,
        policy: MlpPolicy | None = None,
        episodes: int = 20,
        seed: int = 0,
        since: int = 0,
        until: int = 1,
    ) -> None:
        """All nodes together go from ``since`` to ``until`` environment steps, which rates by steps have to know."""
        super().__init__(env=env, settings=settings, policy=policy, episodes=episodes, seed=seed)
        self._workers: list[Worker] = []
        self._since, self._until = since, until
        self._squares = np.ones(self.plan.size, np.float32)
        self.progress = 0.0
        """The share of the run that is over; set by whoever runs it."""

    @property
    def timesteps(self) -> int:
        """Environment steps behind one step of a node."""
        return self.settings.threads * self.settings.period * self.settings.steps_per_update

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Minus the change that one burst makes."""
        if not self._workers:
            self._workers = [self._new_worker(own) for own in (rng, *rng.spawn(self.settings.threads - 1))]
        theta = x.numpy().copy()
        done = self._since + self.progress * (self._until - self._since)
        rates = np.full(self.settings.period, self.settings.rate(done, self._until))
        if len(self._workers) == 1:
            self._workers[0].train(theta, self._squares, rates)
        else:
            with ThreadPoolExecutor(len(self._workers)) as pool:
                for work in [pool.submit(w.train, theta, self._squares, rates) for w in self._workers]:
                    work.result()
        for worker in self._workers:
            worker.drain()
        return x - torch.from_numpy(theta)

    def shard(self, rank: int, size: int) -> Self:
        """The same with environments and statistics of its own."""
        twin = super().shard(rank, size)
        twin._workers, twin._squares = [], np.ones_like(self._squares)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_workers": []}
