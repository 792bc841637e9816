"""One worker: it copies the policy, rolls out in its environments, goes back through what it kept, and writes.

theta' <- theta;   n steps in e environments;   g <- gradient of the loss at theta', clipped
s <- decay s + (1 - decay) g^2,    theta <- theta - lr g / sqrt(s + eps)            both shared, no lock
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from flockstep.backends.real.launch.child_processes import interrupted_later
from flockstep.errors import Diverged
from flockstep.rl.environments.copies import Environments
from flockstep.rl.losses import actor_critic
from flockstep.rl.nets.action_draws import log_prob_and_entropy
from flockstep.rl.nets.passes import passes_of
from flockstep.rl.nets.recorded import Given, Recorded, Work
from flockstep.rl.nets.shared import Shared, write, write_there
from flockstep.rl.nets.torch_rollout import Acting, Player
from flockstep.rl.nets.totals import Totals
from flockstep.rl.settings import Settings
from flockstep.vector import trainable

_LARGEST_SEED = 2**30


def _as_it_is(work: Work) -> Work:
    return work


class Worker:
    """Owns its environments, its copy of the policy and its random numbers; shares all else."""

    def __init__(
        self,
        policy: nn.Module,
        environments: Environments,
        shared: Shared,
        settings: Settings,
        *,
        number: int,
        seed: int,
    ) -> None:
        self._policy, self._shared, self._settings, self._number = policy, shared, settings, number
        self._parameters = trainable(policy)
        self._passes = passes_of(policy)
        draws, begins = np.random.SeedSequence([seed, number]).generate_state(2) % _LARGEST_SEED
        device = self._parameters[0].device
        generator = torch.Generator(device).manual_seed(int(draws))
        self._player = Player(environments, device, self._passes, generator, int(begins))
        repeated: Callable[[Work], Work] = Recorded if self._passes.stays and not shared.on_host else _as_it_is
        self._read, self._learn = repeated(self._read_once), repeated(self._learn_once)
        self._write_there = repeated(partial(write_there, shared, settings))
        self._steps = environments.count * settings.n_steps

    def train(self, since: int, until: int, *, within: float = math.inf) -> Totals:
        """Update until all workers together have taken ``until`` steps, ``since`` of them before.

        But no more than ``period`` times, and for ``within`` seconds: then it is time to tell.
        """
        totals, deadline = Totals(), time.monotonic() + within
        while totals.updates < self._settings.period and time.monotonic() < deadline:
            done = since + int(self._shared.steps.sum())
            if done >= until or self._shared.stop.item():
                totals.last = True
                break
            self.step(self.gradient(), totals, done, until)
        totals.ended = self.ended()
        return totals

    def step(self, losses: Tensor, totals: Totals, done: int, until: int) -> None:
        """Write what ``gradient`` left, and add to what there is to tell."""
        totals.rate = self._settings.rate(done, until)
        # All at once: where they are on a GPU, each look waits for it.
        total, policy, value, entropy = losses.tolist()
        if not math.isfinite(total):
            # Not written: what the others share is still sound.
            raise Diverged(f"the loss of worker {self._number} is {total} after {done} steps")
        self._write(totals.rate)
        totals.updates += 1
        totals.policy += policy
        totals.value += value
        totals.entropy += entropy

    def ended(self) -> list[tuple[float, int]]:
        """Return and length of the episodes that ended since this was last asked."""
        return self._player.ended()

    @property
    def environments(self) -> Environments:
        """Where it acts."""
        return self._player.environments

    def gradient(self) -> Tensor:
        """Read the policy, roll out, and leave the gradient with the parameters; the loss, and its policy's, value's
        and entropy's parts."""
        going = self.going()
        actions = next(going)
        while True:
            try:
                actions = going.send(self.environments.step(actions))
            except StopIteration as end:
                found: Tensor = end.value
                return found

    def going(self) -> Acting[Tensor]:
        """The same, for whoever steps the environments."""
        self._passes.forget()
        self._read()
        rollout = yield from self._player.rolling_out(
            self._settings.n_steps, self._settings.gamma, self._settings.gae_lambda
        )
        losses: Tensor
        losses, *gradients = self._learn(rollout.actions, rollout.returns, rollout.counts)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        return losses

    def _read_once(self) -> tuple[Given, ...]:
        self._shared.read(self._parameters)
        return ()

    def _learn_once(self, actions: Tensor, returns: Tensor, counts: Given) -> tuple[Given, ...]:
        """A loss and its parts, and the gradients of all parameters."""
        for parameter in self._parameters:
            parameter.grad = None
        choice, values = self._passes.outputs()
        log_prob, entropy = log_prob_and_entropy(choice, actions, self.environments.actions.parts)
        losses = actor_critic(
            log_prob,
            entropy.expand_as(log_prob),
            values,
            returns,
            vf_coef=self._settings.vf_coef,
            ent_coef=self._settings.ent_coef,
            counts=counts,
            normalize_advantage=self._settings.normalize_advantage,
        )
        self._passes.backward(losses.total)
        parts = torch.stack([losses.total, losses.policy, losses.value, losses.entropy]).detach()
        return parts, *(parameter.grad for parameter in self._parameters)

    def _write(self, rate: float) -> None:
        gradients = [parameter.grad for parameter in self._parameters]
        # An update is all there or not at all, wherever Ctrl-C comes.
        with interrupted_later():
            if self._shared.on_host:
                write(self._shared, gradients, self._settings, rate)
            else:
                self._write_there(torch.full((), rate, device=self._shared.theta.device), *gradients)
            self._shared.steps[self._number] += self._steps
            self._shared.updates[self._number] += 1
