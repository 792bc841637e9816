"""The loss of an actor-critic, in plain torch: what the torch engine minimises and the compiled one is tested against.

loss = mean[ -log pi(a|s) A + c_v (R - V)^2 - c_e entropy ],      A = R - V, a constant in the first term

Where advantages are normalized, A is what is left without its mean, over its standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Losses:
    """A loss and what it is made of: means over the samples, before their weights."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def actor_critic(
    log_prob: Tensor,
    entropy: Tensor,
    values: Tensor,
    returns: Tensor,
    *,
    vf_coef: float,
    ent_coef: float,
    counts: Tensor | None = None,
    normalize_advantage: bool = False,
) -> Losses:
    """The loss of samples in any shape, the same for all four tensors.

    ``counts`` leaves out samples where it is False: steps in which an environment only began a new episode.
    """
    advantage = (returns - values).detach()
    if normalize_advantage:
        advantage = _normalized(advantage, counts)
    terms = (-log_prob * advantage, (returns - values) ** 2, entropy)
    policy, value, mean_entropy = (_mean(term, counts) for term in terms)
    return Losses(policy + vf_coef * value - ent_coef * mean_entropy, policy, value, mean_entropy)


def categorical(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """log pi(a) and entropy of discrete actions: logits (..., choices), actions (...) of whole numbers."""
    log_p = torch.log_softmax(logits, -1)
    log_prob = log_p.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
    return log_prob, -(log_p.exp() * log_p).sum(-1)


def each_part(logits: Tensor, parts: Sequence[int]) -> Tensor:
    """The logits of choices that are made together, (..., sum of parts), as (..., number of parts, most choices).

    Parts with fewer choices are filled with logits whose chance is 0. Shapes depend on the parts alone, never on what
    is in a tensor, so that a GPU can record it.
    """
    if logits.shape[-1] != sum(parts):
        raise ValueError(
            f"HSA2C.policy must give {sum(parts)} logits for parts of {', '.join(map(str, parts))} choices, "
            f"got {logits.shape[-1]}"
        )
    most = max(parts)
    if min(parts) == most:
        return logits.reshape(*logits.shape[:-1], len(parts), most)
    # Not infinite: it is multiplied by its chance of 0. Half of the least, so that it can be subtracted from.
    never = torch.finfo(logits.dtype).min / 2
    rows = [pad(part, (0, most - part.shape[-1]), value=never) for part in torch.split(logits, list(parts), -1)]
    return torch.stack(rows, -2)


def gaussian(means: Tensor, log_std: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """log pi(a) and entropy of independent normal actions: all (..., dims), ``log_std`` may be (dims,)."""
    log_std = log_std.expand_as(means)
    scaled = (actions - means) * torch.exp(-log_std)
    log_prob = (-0.5 * scaled**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    return log_prob, (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def _normalized(advantage: Tensor, counts: Tensor | None) -> Tensor:
    weights = torch.ones_like(advantage) if counts is None else counts.to(advantage.dtype)
    number = weights.sum()
    apart = advantage - (advantage * weights).sum() / number.clamp(min=1)
    deviation = ((apart**2 * weights).sum() / (number - 1).clamp(min=1)).sqrt()
    # One alone has no deviation.
    return torch.where(number < 2, advantage, apart / (deviation + 1e-8))


def _mean(term: Tensor, counts: Tensor | None) -> Tensor:
    if counts is None:
        return term.mean()
    weights = counts.to(term.dtype)
    return (term * weights).sum() / weights.sum().clamp(min=1)
