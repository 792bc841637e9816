"""The policy for rows of numbers: two small networks, of which stable-baselines3's MlpPolicy is the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from flockstep import check

SMALL, FARTHEST = 1e-8, 10.0
"""What is added to a variance, and how far from 0 a normalized number may be; stable-baselines3's."""
_LITTLE = 1e-4


class MlpPolicy(nn.Module):
    """Two small networks for rows of numbers: logits (or means) of actions, and a value.

    Hidden layers are the actor's and the critic's own, or come after layers that both share. The spread of real-valued
    actions, ``log_std``, does not depend on the observation. With tanh it is trained by compiled code. What
    normalization is by is in the buffers ``seen`` and ``rewarded``, which are saved with the weights.

    Args:
        inputs: Numbers in an observation.
        outputs: Actions to choose from, or real numbers in an action.
        discrete: Whether an action is a choice; False: real numbers.
        actor: Widths of the hidden layers that only the actor has.
        critic: Widths of the hidden layers that only the critic has.
        shared: Widths of the hidden layers before them, which both share.
        activation: Class of the activation between layers.
        ortho_init: Whether weights begin orthogonal, and biases at 0; False: as torch has them.
        log_std_init: What ``log_std`` begins with, for real-valued actions.
        normalize_observations: Whether observations are centred and scaled by what was met in training, to at most 10.
        normalize_rewards: Whether rewards are scaled by what was met in training.

    Example:
        model = HSA2C(MlpPolicy(4, 2, discrete=True, actor=(32,), critic=(32,)), "CartPole-v1")
    """

    seen: Tensor
    rewarded: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        discrete: bool,
        actor: Sequence[int] = (64, 64),
        critic: Sequence[int] = (64, 64),
        shared: Sequence[int] = (),
        activation: type[nn.Module] = nn.Tanh,
        ortho_init: bool = True,
        log_std_init: float = 0.0,
        normalize_observations: bool = False,
        normalize_rewards: bool = False,
    ) -> None:
        super().__init__()
        for name, widths in (("actor", actor), ("critic", critic), ("shared", shared)):
            for width in widths:
                check.whole(self, name, width)
        self.inputs, self.discrete, self.activation = inputs, discrete, activation
        self.widths = {"actor": tuple(actor), "critic": tuple(critic), "shared": tuple(shared)}
        joint = [inputs, *shared]
        self.shared = _layers(joint, activation, ortho_init)
        self.actor = _layers([joint[-1], *actor], activation, ortho_init)
        self.critic = _layers([joint[-1], *critic], activation, ortho_init)
        self.action_net = _linear(([joint[-1], *actor])[-1], outputs, 0.01 if ortho_init else None)
        self.value_net = _linear(([joint[-1], *critic])[-1], 1, 1.0 if ortho_init else None)
        if not discrete:
            self.log_std = nn.Parameter(torch.full((outputs,), float(log_std_init)))
        self.normalize_observations, self.normalize_rewards = normalize_observations, normalize_rewards
        if normalize_observations:
            self.register_buffer("seen", nothing_yet(inputs))
        if normalize_rewards:
            self.register_buffer("rewarded", nothing_yet(1))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Of (rows, ...) observations."""
        rows = observations.flatten(1).to(self.value_net.weight.dtype)
        seen = self.shared(normalized(rows, self.seen) if self.normalize_observations else rows)
        return self.action_net(self.actor(seen)), self.value_net(self.critic(seen)).squeeze(-1)


def nothing_yet(numbers: int) -> Tensor:
    """How many rows there were, their sum and the sum of their squares: a little of a mean of 0 and a variance of 1.

    Sums, so that what threads and machines have met can be added.
    """
    return _LITTLE * torch.cat([torch.ones(1), torch.zeros(numbers), torch.ones(numbers)])


def normalized(rows: Tensor, statistics: Tensor) -> Tensor:
    """Rows without the mean of what the statistics have met, over its deviation; no farther than 10."""
    count, (total, squares) = statistics[0], statistics[1:].view(2, -1)
    mean = total / count
    deviation = ((squares / count - mean.square()).clamp(min=0) + SMALL).sqrt()
    near: Tensor = ((rows - mean) / deviation).clamp(-FARTHEST, FARTHEST)
    return near


def _layers(widths: Sequence[int], activation: type[nn.Module], ortho_init: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [_linear(before, after, math.sqrt(2) if ortho_init else None), activation()]
    return nn.Sequential(*layers)


def _linear(before: int, after: int, gain: float | None) -> nn.Linear:
    layer = nn.Linear(before, after)
    if gain is not None:
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return layer
