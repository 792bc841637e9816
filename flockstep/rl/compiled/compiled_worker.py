"""One thread's part of the work: its environments, its random numbers, its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.errors import Diverged
from flockstep.rl.compiled import update
from flockstep.rl.compiled.classic import KNOWN, STATE, begin
from flockstep.rl.compiled.compiled_rollout import Finished, Rollout, World, act, collect, note, values_beyond
from flockstep.rl.compiled.layout import Plan
from flockstep.rl.compiled.memory import apart
from flockstep.rl.compiled.network import block
from flockstep.rl.compiled.scaling import nothing_met
from flockstep.rl.environments.copies import Environments
from flockstep.rl.settings import Settings


def rollout_arrays(plan: Plan, settings: Settings, dims: int, dtype: Any) -> Rollout:
    """Room for one roll-out."""
    steps, envs = settings.n_steps, settings.envs_per_thread
    shape, acts = (steps, envs), (steps + 1) * envs * plan.columns
    return Rollout(
        acts=apart(acts, dtype),
        slopes=apart(acts, dtype),
        actions=apart((*shape, dims), dtype),
        rewards=apart(shape, dtype),
        ends=apart(shape, np.int8),
        final_values=apart(shape, dtype),
        returns=apart(shape, dtype),
        counts=apart(shape, dtype, 1),
        met=nothing_met(plan, envs, dtype),
    )


def own_arrays(plan: Plan, dtype: Any) -> update.Own:
    """Room for one thread's copy and gradient."""
    largest = int((plan.net.layers[:, 2] * plan.net.layers[:, 3]).max())
    return update.Own(apart(plan.size, dtype), apart(plan.size, dtype), apart(largest, dtype))


def weights_of(settings: Settings) -> update.Weights:
    """The numbers of an update."""
    return update.Weights(**{name: float(getattr(settings, name)) for name in update.Weights._fields})


class Worker:
    """Rolls out and learns, on parameters that others write at the same time.

    Environments are gymnasium's by name, compiled, or those it is given, which Python steps.
    """

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        env: str | Environments,
        *,
        inputs: int,
        dims: int,
        rng: np.random.Generator,
        number: int = 0,
        dtype: Any = np.float32,
    ) -> None:
        self._number = number
        self._plan, self._settings, self._inputs = plan, settings, inputs
        self.rng = rng
        self.roll, self.own = rollout_arrays(plan, settings, dims, dtype), own_arrays(plan, dtype)
        self._weights, self.sums = weights_of(settings), apart(4)
        most = settings.period * settings.steps_per_update
        self._finished = Finished(apart(most), apart(most, np.int64), apart(1, np.int64))
        self._env = env
        envs = settings.envs_per_thread
        self._ages, self._scores = apart(envs, np.int64), apart(envs)
        # As they came: those in the roll-out may be normalized by now.
        self._now: NDArray[Any] = np.zeros((envs, inputs))
        if isinstance(env, str):
            known = KNOWN[env]
            self._world = World(known.kind, known.limit, apart((envs, STATE)), self._ages, self._scores)
            for state in self._world.states:
                begin(known.kind, self.rng, state)
        else:
            self._now = env.reset(int(self.rng.integers(2**31))).reshape(envs, inputs)

    def train(self, theta: NDArray[Any], squares: NDArray[Any], rates: NDArray[Any]) -> None:
        """An update of the shared vectors for each learning rate."""
        net, roll, own = self._plan.net, self.roll, self.own
        if isinstance(self._env, str):
            update.train(
                theta,
                squares,
                net,
                self._inputs,
                roll,
                self._world,
                own,
                self._weights,
                rates,
                self.rng,
                self._finished,
                self.sums,
            )
            return
        own.theta[:] = theta
        for rate in rates:
            self._step_through(self._env)
            update.improve(theta, squares, net, roll, own, self._weights, rate, self.sums)

    def gradient(self, theta: NDArray[Any]) -> NDArray[Any]:
        """Of one roll-out with these parameters, clipped; the array is used again."""
        self.own.theta[:] = theta
        net = self._plan.net
        if isinstance(self._env, str):
            collect(self.own.theta, net, self._inputs, self.roll, self._world, self.rng, self._finished)
        else:
            self._step_through(self._env)
        update.gradient(net, self.roll, self.own, self._weights, self.sums)
        g: NDArray[Any] = self.own.g
        update.clip(g, self._weights.max_grad_norm)
        return g

    def drain(self) -> tuple[list[float], list[int], NDArray[Any]]:
        """Returns and lengths of episodes that ended since the last call, and sums of the loss's parts."""
        count = int(self._finished.count[0])
        returns, lengths = self._finished.returns[:count].tolist(), self._finished.lengths[:count].tolist()
        sums = self.sums.copy()
        if not np.isfinite(sums).all():
            raise Diverged(f"the loss of worker {self._number} is no longer a finite number: the rate may be too high")
        self._finished.count[0] = 0
        self.sums[:] = 0
        return returns, lengths, sums

    def close(self) -> None:
        """Close environments that can be."""
        if not isinstance(self._env, str):
            self._env.close()

    def _seen(self, t: int) -> NDArray[Any]:
        """The observations of step t."""
        steps, envs = self.roll.rewards.shape
        rows: NDArray[Any] = block(self.roll.acts, (steps + 1) * envs, 0, self._inputs)
        return rows[t * envs : (t + 1) * envs]

    def _trust(self, what: str, given: NDArray[Any]) -> None:
        """One number that is not finite would be in everybody's weights after the next update."""
        if not np.isfinite(given).all():
            which = np.flatnonzero(~np.isfinite(given.reshape(len(given), -1)).all(1))[0]
            raise Diverged(f"the {what} of environment {which} of worker {self._number} is not finite: {given[which]}")

    def _step_through(self, env: Environments) -> None:
        """A roll-out in environments that Python steps; the last observations are the next roll-out's first."""
        net, roll, theta = self._plan.net, self.roll, self.own.theta
        steps, beyond = len(roll.rewards), self._seen(len(roll.rewards))
        values = block(roll.acts, len(beyond) * (steps + 1), net.value, 1)[-len(beyond) :, 0]
        self._seen(0)[:] = self._now
        for t in range(steps):
            act(theta, net, roll, t, self.rng)
            drawn = roll.actions[t, :, 0] if env.actions.discrete else roll.actions[t]
            step = env.step(drawn)
            self._trust("reward", step.rewards)
            self._trust("observation", step.observations)
            roll.rewards[t], roll.counts[t] = step.rewards, step.counts
            roll.ends[t] = np.where(step.terminated, 1, 2 * step.truncated)
            self._ages += step.counts
            self._scores += step.rewards
            for e in np.flatnonzero(roll.ends[t]):
                if roll.ends[t, e] == 2:
                    beyond[e] = step.finals[e].ravel()
                    values_beyond(theta, net, roll, e, e + 1)
                    roll.final_values[t, e] = values[e]
                note(self._finished, self._scores[e], self._ages[e])
                self._ages[e], self._scores[e] = 0, 0.0
            self._now = step.observations.reshape(beyond.shape)
            self._seen(t + 1)[:] = self._now
        values_beyond(theta, net, roll, 0, len(beyond))
