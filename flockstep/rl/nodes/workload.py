"""An actor-critic as a workload: for any strategy, on virtual nodes and on real ones.

start()         the policy's parameters as one vector
gradient(x)     of one roll-out in the node's own environments, clipped; step with RMSpropTF
loss(x)         minus the mean return of some episodes
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flockstep import check
from flockstep.rl.assembly import copies_of, environments, policy_for, source_is_compiled
from flockstep.rl.compiled.compiled_worker import Worker
from flockstep.rl.compiled.layout import Plan
from flockstep.rl.compiled.playing import returns_of
from flockstep.rl.environments.copies import source_of
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.settings import Settings


class ActorCritic:
    """``MlpPolicy`` on a gymnasium environment; a step of a node is one roll-out and one update.

    Every shard has environments of its own, which begin when it is first asked for a gradient and go on from one to
    the next. All randomness comes from the node's. Training begins with ``policy``, or with a new one of two layers of
    64 from ``seed``. ``loss`` plays ``episodes`` episodes that are always the same,
    with actions drawn as in training.
    """

    leaves_interpreter_lock = True
    shares_statistics = False

    def __init__(
        self,
        *,
        env: Any,
        settings: Settings | None = None,
        policy: MlpPolicy | None = None,
        episodes: int = 20,
        seed: int = 0,
    ) -> None:
        self.settings = Settings() if settings is None else settings
        if not isinstance(self.settings, Settings):
            raise TypeError(f"ActorCritic.settings must be Settings(...), got {settings!r}")
        self._episodes = check.whole(self, "episodes", episodes)
        self.seed = check.whole(self, "seed", seed, at_least=0)
        self.source = source_of(env)
        one = environments(self.source, None, envpool=False, images=False)
        asked = None if settings is None else settings.envs_per_thread
        self.settings = replace(self.settings, envs_per_thread=copies_of(one, asked))
        self.observations, self.actions = one.observations, one.actions
        one.close()
        if self.actions.parts:
            raise ValueError(
                f"{type(self).__name__}.env must have Discrete or Box actions, got {one.spaces[1]}\n"
                "  HSA2C.learn takes them on one machine"
            )
        begun = policy_for("MlpPolicy" if policy is None else policy, self.observations, self.actions, {}, self.seed)
        if not isinstance(begun, MlpPolicy):
            raise TypeError(f"{type(self).__name__}.policy must be an MlpPolicy, got {type(begun).__name__}")
        if not self.shares_statistics and (begun.normalize_observations or begun.normalize_rewards):
            raise ValueError(f"{type(self).__name__}.policy must not normalize: gradients do not tell what was met")
        self.policy = copy.deepcopy(begun)
        self.plan = Plan.of(self.policy)
        self._worker: Worker | None = None

    def start(self) -> Tensor:
        """The policy as it begins, the same for one seed."""
        vector = np.zeros(self.plan.size, np.float32)
        self.plan.pack(self.policy, vector)
        return torch.from_numpy(vector)

    def gradient(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Of the next roll-out, clipped to ``max_grad_norm``."""
        if self._worker is None:
            self._worker = self._new_worker(rng)
        self._worker.rng = rng
        g = torch.from_numpy(self._worker.gradient(x.numpy()).copy())
        self._worker.drain()
        return g

    def loss(self, x: Tensor) -> float:
        """Minus the mean return."""
        return -float(np.mean(self.returns(x)))

    def returns(self, x: Tensor, *, likeliest: bool = False) -> NDArray[Any]:
        """The returns of the episodes that ``loss`` plays."""
        rng, theta = np.random.default_rng([self.seed, self._episodes]), np.ascontiguousarray(x.numpy())
        if source_is_compiled(self.source, False):
            return returns_of(
                theta,
                self.plan,
                self.source,
                self.policy.inputs,
                episodes=self._episodes,
                likeliest=likeliest,
                rng=rng,
            )
        return self._played_by_python(theta, likeliest, rng)

    def shard(self, rank: int, size: int) -> Self:
        """The same with environments of its own: there is no data to deal out."""
        twin = copy.copy(self)
        twin._worker = None
        return twin

    def fill(self, policy: MlpPolicy, x: Tensor) -> None:
        """A vector's parameters into a policy of the same shape."""
        self.plan.unpack(np.ascontiguousarray(x.numpy()), policy)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # For a member of a crew: it steps beside the others, in environments of its own.
        return self.shard(0, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_worker": None}

    def _new_worker(self, rng: np.random.Generator) -> Worker:
        return Worker(
            self.plan,
            self.settings,
            self.source
            if source_is_compiled(self.source, False)
            else environments(self.source, self.settings.envs_per_thread, envpool=False, images=False),
            inputs=self.policy.inputs,
            dims=1 if self.actions.discrete else self.actions.size,
            rng=rng,
        )

    def _played_by_python(self, theta: NDArray[Any], likeliest: bool, rng: np.random.Generator) -> NDArray[Any]:
        from flockstep.rl.compiled.compiled_engine import decide
        from flockstep.rl.reporting.evaluation import evaluate

        env = environments(self.source, None, envpool=False, images=False)

        def predict(rows: NDArray[Any]) -> NDArray[Any]:
            return decide(theta, self.plan, self.policy.inputs, self.actions, rows, rng, likeliest=likeliest)

        try:
            return np.array(evaluate(env, predict, self._episodes, self.seed).returns)
        finally:
            env.close()
