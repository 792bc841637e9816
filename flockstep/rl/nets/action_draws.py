"""Actions drawn from what a policy gave, and how likely they were.

An action may be several choices at once, its ``parts``: each is drawn for itself, and logarithms of chances add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flockstep.rl.losses import categorical, each_part, gaussian
from flockstep.rl.policies.networks import Choice


def draw(choice: Choice, generator: torch.Generator, parts: Sequence[int] = ()) -> Tensor:
    """One action for each row: numbers of choices, or real numbers."""
    if isinstance(choice, Tensor):
        # The least of exponential times with these rates is each one's as often as its share of the rates.
        chances = torch.softmax(each_part(choice, parts) if parts else choice, -1)
        return chances.div_(torch.empty_like(chances).exponential_(1, generator=generator)).argmax(-1)
    mean, log_std = choice
    noise = torch.empty_like(mean).normal_(generator=generator)
    return mean + log_std.exp() * noise


def likeliest(choice: Choice, parts: Sequence[int] = ()) -> Tensor:
    """The action that a policy would take most often, or the middle of them."""
    if isinstance(choice, Tensor):
        return (each_part(choice, parts) if parts else choice).argmax(-1)
    return choice[0]


def log_prob_and_entropy(choice: Choice, actions: Tensor, parts: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Of actions that were drawn."""
    if not isinstance(choice, Tensor):
        return gaussian(*choice, actions)
    if not parts:
        return categorical(choice, actions)
    log_prob, entropy = categorical(each_part(choice, parts), actions)
    return log_prob.sum(-1), entropy.sum(-1)
