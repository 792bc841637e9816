"""Policies: a trunk that reads observations, a head that chooses actions, a head that values states.

A policy is any torch module that gives, for a batch of observations as the environments made them (images in uint8),
``(logits, value)`` where actions are discrete, ``((mean, log_std), value)`` where they are continuous. Where several
choices are made at once, the logits of all are one row. The ones here begin orthogonal unless they are asked not to;
CnnPolicy and MlpPolicy are the networks that stable-baselines3 calls so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from flockstep.rl.environments.spaces import Actions, Observations
from flockstep.rl.policies.mlp import MlpPolicy

Choice: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""What an action is drawn from: logits, or (mean, log_std)."""
PolicyFactory: TypeAlias = Callable[..., nn.Module]
"""Of observations and actions, and of what policy_options.py makes of ``policy_kwargs``."""


def ask(policy: nn.Module, observations: Tensor) -> tuple[Choice, Tensor]:
    """What any policy says of a batch: what to draw actions from, and one value each.

    A policy may give means alone and have the spread of actions, ``log_std``, as a parameter.
    """
    given, values = policy(observations)
    if values.numel() != len(observations):
        raise ValueError(
            f"HSA2C.policy must give one value for each of {len(observations)} observations, "
            f"got values of shape {tuple(values.shape)}"
        )
    log_std = getattr(policy, "log_std", None)
    choice = (given, log_std) if isinstance(given, Tensor) and log_std is not None else given
    return choice, values.reshape(-1)


class Images(nn.Module):
    """Frames to numbers from 0 to 1, where they are bytes; channels first in shape and last in memory."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ValueError(f"an image has a height, a width and channels, got observations of shape {tuple(shape)}")
        self.channels_first = min(shape) == shape[0]
        self.channels = int(shape[0] if self.channels_first else shape[-1])
        self.size = tuple(int(n) for n in (shape[1:] if self.channels_first else shape[:-1]))

    def forward(self, frames: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same for every network that looks at images."""
        planes = frames if self.channels_first else frames.permute(0, 3, 1, 2)
        # First to numbers, then to the other order: together they are several times slower.
        numbers = planes.to(dtype).div_(255) if frames.dtype == torch.uint8 else planes.to(dtype)
        return numbers.contiguous(memory_format=torch.channels_last)


class ActorCritic(nn.Module):
    """``eyes`` read what environments made, ``trunk`` finds features, and two linear heads share them."""

    def __init__(
        self,
        eyes: nn.Module,
        trunk: nn.Sequential,
        features: int,
        actions: Actions,
        *,
        ortho_init: bool = True,
        log_std_init: float = 0.0,
    ) -> None:
        super().__init__()
        self.eyes, self.trunk = eyes, trunk
        self.actor, self.log_std = _actor(features, actions, log_std_init)
        self.critic = nn.Linear(features, 1)
        if ortho_init:
            _orthogonal(self.trunk, math.sqrt(2))
            _orthogonal(self.actor, 0.01)
            _orthogonal(self.critic, 1.0)

    def forward(self, observations: Tensor) -> tuple[Choice, Tensor]:
        """What to draw actions from, and what the states are worth."""
        return self.judge(self.trunk(self.see(observations)))

    def see(self, observations: Tensor) -> Tensor:
        """Observations as the trunk takes them."""
        seen: Tensor = self.eyes(observations, self.critic.weight.dtype)
        return seen

    def judge(self, features: Tensor) -> tuple[Choice, Tensor]:
        """Both heads."""
        scores = self.actor(features)
        return scores if self.log_std is None else (scores, self.log_std), self.critic(features)[:, 0]


def mlp_policy(observations: Observations, actions: Actions, **options: Any) -> MlpPolicy:
    """Two layers of 64 tanh for the actor, and as many for the critic, where nothing else is asked for."""
    return MlpPolicy(observations.size, actions.size, discrete=actions.discrete, **options)


def nature_policy(observations: Observations, actions: Actions, **options: Any) -> ActorCritic:
    """The network of the deep Q-network in Nature (Mnih et al. 2015): three convolutions and 512 features."""
    return _image_policy(observations, actions, ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512, **options)


def a3c_policy(observations: Observations, actions: Actions, **options: Any) -> ActorCritic:
    """The network of A3C (Mnih et al. 2016): two convolutions and 256 features."""
    return _image_policy(observations, actions, ((16, 8, 4), (32, 4, 2)), 256, **options)


POLICIES: dict[str, PolicyFactory] = {
    "MlpPolicy": mlp_policy,
    "CnnPolicy": nature_policy,
    "A3CPolicy": a3c_policy,
}


def _image_policy(
    observations: Observations,
    actions: Actions,
    convolutions: Sequence[tuple[int, int, int]],
    features: int,
    **options: Any,
) -> ActorCritic:
    eyes = Images(observations.shape)
    layers: list[nn.Module] = []
    channels, (height, width) = eyes.channels, eyes.size
    for planes, kernel, stride in convolutions:
        if min(height, width) < kernel:
            raise ValueError(
                f"images of {eyes.size[0]} x {eyes.size[1]} are too small for this network: 36 x 36 is least"
            )
        layers += [nn.Conv2d(channels, planes, kernel, stride), nn.ReLU()]
        channels, height, width = planes, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    layers += [nn.Flatten(), nn.Linear(channels * height * width, features), nn.ReLU()]
    policy = ActorCritic(eyes, nn.Sequential(*layers), features, actions, **options)
    return policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _actor(features: int, actions: Actions, log_std: float) -> tuple[nn.Linear, nn.Parameter | None]:
    """A linear head, and for continuous actions their spread, the same in every state."""
    spread = None if actions.discrete else nn.Parameter(torch.full((actions.size,), float(log_std)))
    return nn.Linear(features, actions.size), spread


def _orthogonal(module: nn.Module, gain: float) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight, gain=gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
