"""A few steps in every environment of a worker, and the returns of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flockstep.rl.environments.copies import Environments, Step
from flockstep.rl.nets.action_draws import draw
from flockstep.rl.nets.passes import Passes
from flockstep.rl.nets.recorded import Recorded
from flockstep.rl.policies.networks import Choice
from flockstep.rl.returns import n_step_returns

T = TypeVar("T")


Acting = Generator[NDArray[Any], Step, T]
"""It gives actions, one for each environment, and is told what came of them."""


@dataclass(frozen=True)
class Rollout:
    """What was done and what came of it, (steps, environments, ...); what was seen is with the passes."""

    actions: Tensor
    returns: Tensor
    counts: Tensor | None
    """False where a step only began an episode; None where all count."""


class Player:
    """Acts in environments with a policy, whose parameters others change between roll-outs."""

    def __init__(
        self, environments: Environments, device: torch.device, passes: Passes, generator: torch.Generator, seed: int
    ) -> None:
        self._environments, self._device, self._passes, self._generator = environments, device, passes, generator
        self._draw = Recorded(self._drawn, generator) if passes.stays else self._drawn
        self._seen = self._tensor(environments.reset(seed))
        # Emulators know of whole games, whatever a policy is told of them.
        self._games: Callable[[], list[tuple[float, int]]] | None = getattr(environments, "ended", None)
        self._scores = np.zeros(environments.count)
        self._lengths = np.zeros(environments.count, np.int64)
        self._ended: list[tuple[float, int]] = []

    @property
    def environments(self) -> Environments:
        """Where it acts."""
        return self._environments

    def rolling_out(self, steps: int, gamma: float, gae_lambda: float = 1.0) -> Acting[Rollout]:
        """Take so many steps in every environment."""
        actions, worth, taken = [], [], []
        for _ in range(steps):
            choice, values = self._passes.keep(self._seen)
            worth.append(values)
            # Recorded, the next are drawn to the same place.
            actions.append(self._draw(*_parts(choice))[0].clone())
            step = yield actions[-1].cpu().numpy()
            self._seen = self._tensor(step.observations)
            if self._games is None:
                self._score(step)
            taken.append(step)
        counts = np.stack([step.counts for step in taken])
        return Rollout(
            torch.stack(actions),
            self._returns(taken, torch.stack(worth), gamma, gae_lambda),
            None if counts.all() else torch.from_numpy(counts).to(self._device),
        )

    def ended(self) -> list[tuple[float, int]]:
        """Return and length of the episodes that ended since this was last asked."""
        if self._games is not None:
            return self._games()
        ended, self._ended = self._ended, []
        return ended

    @torch.no_grad()
    def _returns(self, taken: list[Step], expected: Tensor, gamma: float, gae_lambda: float) -> Tensor:
        """With the values of where it stands now and, in the same pass, of where a time limit cut an episode."""
        rewards, terminated, truncated = (
            np.stack([getattr(step, name) for step in taken]) for name in ("rewards", "terminated", "truncated")
        )
        cut = truncated & ~terminated
        beyond = [
            self._seen,
            *(self._tensor(step.finals[row]) for step, row in zip(taken, cut, strict=True) if row.any()),
        ]
        values = self._passes.values(beyond[0] if len(beyond) == 1 else torch.cat(beyond))
        worth = values.double().cpu().numpy()
        final_values = np.zeros_like(rewards, np.float64)
        final_values[cut] = worth[len(self._seen) :]
        returns = n_step_returns(
            rewards.astype(np.float64),
            terminated,
            truncated,
            final_values,
            worth[: len(self._seen)],
            gamma,
            # From a GPU they take time.
            values=None if gae_lambda == 1 else expected.double().cpu().numpy(),
            gae_lambda=gae_lambda,
        )
        return torch.from_numpy(returns).to(values)

    def _drawn(self, *choice: Tensor) -> tuple[Tensor]:
        given = choice[0] if len(choice) == 1 else (choice[0], choice[1])
        return (draw(given, self._generator, self._environments.actions.parts),)

    def _score(self, step: Step) -> None:
        self._scores += step.rewards * step.counts
        self._lengths += step.counts
        for i in np.flatnonzero(step.terminated | step.truncated):
            self._ended.append((float(self._scores[i]), int(self._lengths[i])))
            self._scores[i] = self._lengths[i] = 0

    def _tensor(self, observations: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(observations).to(self._device)


def _parts(choice: Choice) -> tuple[Tensor, ...]:
    return (choice,) if isinstance(choice, Tensor) else choice
