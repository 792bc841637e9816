"""Threads that roll out and learn on one shared vector without a lock.

    each thread, over and over:   u <- theta, a copy;   n steps in its environments;   g = gradient at u, clipped
                                  s <- decay s + (1 - decay) g^2;   theta <- theta - lr g / sqrt(s + eps)

theta and s are shared. What a thread reads may be of different ages, and a number that two write at once may keep one
change of the two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flockstep.rl.compiled.compiled_worker import Worker
from flockstep.rl.compiled.heads import draw, most_likely
from flockstep.rl.compiled.layout import Plan
from flockstep.rl.compiled.memory import apart
from flockstep.rl.compiled.network import block, forward
from flockstep.rl.compiled.scaling import normalize, nothing_met
from flockstep.rl.engine import Tally, Tell
from flockstep.rl.environments.copies import Environments
from flockstep.rl.environments.spaces import Actions
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.settings import Settings


class CompiledEngine:
    """For policies of the kind ``MlpPolicy``.

    ``env`` is the name of a compiled environment, or makes environments for one thread, which Python then steps.
    """

    def __init__(
        self,
        policy: MlpPolicy,
        env: str | Callable[[], Environments],
        actions: Actions,
        settings: Settings,
        *,
        seed: int,
        begin_at: int = 0,
    ) -> None:
        self._policy, self._settings, self._actions = policy, settings, actions
        self.plan = Plan.of(policy)
        self.theta = apart(self.plan.size, np.float32)
        self.squares = apart(self.plan.size, np.float32, 1)
        # Resumed training must not meet the same episodes again.
        self._rng = np.random.default_rng([seed, begin_at, settings.threads])
        self._env, self._seeds = env, (seed, begin_at)
        self._workers: list[Worker] = []

    def train(self, *, since: int, until: int, tell: Tell) -> int:
        """See ``Engine``."""
        self._share()
        # Only now: whoever predicts alone needs no environments.
        self._workers = self._workers or [self._new_worker(number) for number in range(self._settings.threads)]
        work = _Work(self._settings, since, until)
        if len(self._workers) == 1:
            self._alone(work, tell)
        else:
            self._together(work, tell)
        return work.done

    def predict(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """See ``Engine``."""
        self._share()
        return decide(
            self.theta,
            self.plan,
            self._policy.inputs,
            self._actions,
            observations,
            self._rng,
            likeliest=deterministic,
        )

    def state(self) -> Mapping[str, Tensor]:
        """RMSprop's statistics, laid out as the parameters are."""
        return {"squares": torch.from_numpy(self.squares.copy())}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on with these."""
        self.squares[:] = state["squares"].numpy()

    def close(self) -> None:
        """Close environments."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _new_worker(self, number: int) -> Worker:
        return Worker(
            self.plan,
            self._settings,
            self._env if isinstance(self._env, str) else self._env(),
            inputs=self._policy.inputs,
            dims=1 if self._actions.discrete else self._actions.size,
            rng=np.random.default_rng([*self._seeds, number]),
            number=number,
        )

    def _alone(self, work: _Work, tell: Tell) -> None:
        """In this thread, so that one seed has one outcome, whatever ``tell`` decides."""
        while (rates := work.claim()) is not None:
            self._workers[0].train(self.theta, self.squares, rates)
            work.finish(rates)
            self._tell(work, self._workers[0].drain(), float(rates[-1]), tell)

    def _together(self, work: _Work, tell: Tell) -> None:
        reports: SimpleQueue[Any] = SimpleQueue()
        threads = [
            threading.Thread(target=self._serve, args=(worker, work, reports), name=f"HSA2C {i}", daemon=True)
            for i, worker in enumerate(self._workers)
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                report = reports.get()
                if report is None:
                    running -= 1
                elif isinstance(report, BaseException):
                    raise report
                else:
                    drained, rate = report
                    self._tell(work, drained, rate, tell)
        finally:
            work.stop()
            for thread in threads:
                thread.join()

    def _serve(self, worker: Worker, work: _Work, reports: SimpleQueue[Any]) -> None:
        try:
            while (rates := work.claim()) is not None:
                worker.train(self.theta, self.squares, rates)
                work.finish(rates)
                reports.put((worker.drain(), float(rates[-1])))
        except BaseException as error:
            # All of them: whoever waits for the report would wait for ever.
            reports.put(error)
        reports.put(None)

    def _tell(self, work: _Work, drained: tuple[list[float], list[int], NDArray[Any]], rate: float, tell: Tell) -> None:
        returns, lengths, sums = drained
        policy, value, entropy = sums[:3] / max(sums[3], 1)
        if not tell(Tally(work.done, returns, lengths, policy, value, entropy, rate)):
            work.stop()

    def _share(self) -> None:
        """The module's parameters lie in the vector; if somebody gave it others, those are taken over."""
        if not self.plan.is_shared(self._policy, self.theta):
            self.plan.share(self._policy, self.theta)


def decide(
    theta: NDArray[Any],
    plan: Plan,
    inputs: int,
    actions: Actions,
    observations: NDArray[Any],
    rng: np.random.Generator,
    *,
    likeliest: bool,
) -> NDArray[Any]:
    """Actions for some observations, as a policy draws them: from 0 and unbounded."""
    count, net = len(observations), plan.net
    acts = np.zeros(count * plan.columns, theta.dtype)
    block(acts, count, 0, inputs)[:] = observations.reshape(count, -1)
    normalize(theta, net, block(acts, count, 0, inputs), nothing_met(plan, 1, theta.dtype), False)
    forward(theta, net.layers, acts, (count, 0, count), 0, net.shared + net.actor)
    said = block(acts, count, net.logits, net.outputs)
    drawn = np.zeros((count, 1 if actions.discrete else actions.size), theta.dtype)
    if likeliest:
        most_likely(net, said, drawn)
    else:
        draw(theta, net, said, rng, drawn)
    return drawn[:, 0] if actions.discrete else drawn


class _Work:
    """How much is done, and who does what next. This has a lock; the parameters have none."""

    def __init__(self, settings: Settings, since: int, until: int) -> None:
        self._settings, self._until, self._claimed = settings, until, since
        self.done = since
        self._lock, self._stopped = threading.Lock(), False

    def claim(self) -> NDArray[Any] | None:
        """The learning rates of the next updates, or None if there is nothing left to do."""
        size = self._settings.steps_per_update
        with self._lock:
            first = self._claimed
            updates = min(self._settings.period, -(-(self._until - first) // size))
            if self._stopped or updates <= 0:
                return None
            self._claimed += updates * size
        return np.array([self._settings.rate(first + k * size, self._until) for k in range(updates)])

    def finish(self, rates: NDArray[Any]) -> None:
        """Those updates were made."""
        with self._lock:
            self.done += len(rates) * self._settings.steps_per_update

    def stop(self) -> None:
        """Give out no more."""
        self._stopped = True
