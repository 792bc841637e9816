"""Actions drawn from what a policy gave, and how likely they were."""

from __future__ import annotations

import torch
from torch import Tensor

from flockstep.rl.losses import categorical, gaussian
from flockstep.rl.networks import Choice


def draw(choice: Choice, generator: torch.Generator) -> Tensor:
    """One action for each row: numbers of choices, or real numbers."""
    if isinstance(choice, Tensor):
        # The least of exponential times with these rates is each one's as often as its share of the rates.
        chances = torch.softmax(choice, -1)
        return chances.div_(torch.empty_like(chances).exponential_(1, generator=generator)).argmax(-1)
    mean, log_std = choice
    noise = torch.empty_like(mean).normal_(generator=generator)
    return mean + log_std.exp() * noise


def likeliest(choice: Choice) -> Tensor:
    """The action that a policy would take most often, or the middle of them."""
    return choice.argmax(-1) if isinstance(choice, Tensor) else choice[0]


def log_prob_and_entropy(choice: Choice, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Of actions that were drawn."""
    return categorical(choice, actions) if isinstance(choice, Tensor) else gaussian(*choice, actions)
