"""Actions drawn from what a policy says, and the slopes of the loss at what it said."""

from __future__ import annotations

import math
from typing import Any

from flockstep.rl.compiled.kernels import compiled
from flockstep.rl.compiled.network import block

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@compiled
def draw_choice(logits: Any, rng: Any) -> Any:
    """A choice, by its probability."""
    largest = logits[0]
    for k in range(1, logits.size):
        largest = max(largest, logits[k])
    total = 0.0
    for k in range(logits.size):
        total += math.exp(logits[k] - largest)
    left = rng.random() * total
    for k in range(logits.size - 1):
        left -= math.exp(logits[k] - largest)
        if left < 0:
            return k
    return logits.size - 1


@compiled
def draw(theta: Any, net: Any, said: Any, rng: Any, actions: Any) -> None:
    """An action for every row: ``said`` has logits or means, ``actions`` gets choices or numbers."""
    for r in range(said.shape[0]):
        if net.log_std < 0:
            actions[r, 0] = draw_choice(said[r], rng)
        else:
            for d in range(net.outputs):
                actions[r, d] = said[r, d] + math.exp(theta[net.log_std + d]) * rng.standard_normal()


@compiled
def most_likely(net: Any, said: Any, actions: Any) -> None:
    """The action with the highest probability, for every row."""
    for r in range(said.shape[0]):
        if net.log_std < 0:
            best = 0
            for k in range(1, net.outputs):
                if said[r, k] > said[r, best]:
                    best = k
            actions[r, 0] = best
        else:
            for d in range(net.outputs):
                actions[r, d] = said[r, d]


@compiled
def choice_slopes(said: Any, chosen: Any, advantage: Any, ent_coef: Any, share: Any, slope: Any) -> Any:
    """Of one row of logits: ``slope`` gets the loss's, log pi and entropy come back."""
    largest = said[0]
    for k in range(1, said.size):
        largest = max(largest, said[k])
    total = 0.0
    for k in range(said.size):
        total += math.exp(said[k] - largest)
    log_total = math.log(total) + largest
    entropy = 0.0
    for k in range(said.size):
        entropy -= math.exp(said[k] - log_total) * (said[k] - log_total)
    for k in range(said.size):
        p = math.exp(said[k] - log_total)
        hit = 1.0 if k == chosen else 0.0
        slope[k] = share * ((p - hit) * advantage + ent_coef * p * (said[k] - log_total + entropy))
    return said[chosen] - log_total, entropy


@compiled
def number_slopes(
    said: Any, log_std: Any, taken: Any, advantage: Any, ent_coef: Any, share: Any, slope: Any, spread_slope: Any
) -> Any:
    """Of one row of means; the spread's slope is added to ``spread_slope``."""
    log_prob = entropy = 0.0
    for d in range(said.size):
        inverse = math.exp(-log_std[d])
        scaled = (taken[d] - said[d]) * inverse
        log_prob -= 0.5 * scaled * scaled + log_std[d] + _HALF_LOG_2PI
        entropy += log_std[d] + 0.5 + _HALF_LOG_2PI
        slope[d] = -share * advantage * scaled * inverse
        spread_slope[d] += share * (advantage * (1.0 - scaled * scaled) - ent_coef)
    return log_prob, entropy


@compiled
def scale_of_advantages(roll: Any, values: Any, counted: Any) -> Any:
    """What is subtracted from advantages, and what they are multiplied by then, so that they are 0 and 1 on average."""
    steps, envs = roll.rewards.shape
    mean = square = 0.0
    if counted < 2:
        return 0.0, 1.0
    for t in range(steps):
        for e in range(envs):
            mean += roll.counts[t, e] * (float(roll.returns[t, e]) - float(values[t * envs + e, 0])) / counted
    for t in range(steps):
        for e in range(envs):
            away = float(roll.returns[t, e]) - float(values[t * envs + e, 0]) - mean
            square += roll.counts[t, e] * away * away
    return mean, 1.0 / (math.sqrt(square / (counted - 1.0)) + 1e-8)


@compiled
def loss_slopes(theta: Any, net: Any, roll: Any, weights: Any, g: Any, sums: Any) -> None:
    """The loss's slopes at logits (or means) and values of a roll-out whose returns are known.

    ``sums`` gets the loss's three parts added, each a mean over the samples that count.
    """
    steps, envs = roll.rewards.shape
    total = (steps + 1) * envs
    counted = 0.0
    for t in range(steps):
        for e in range(envs):
            counted += roll.counts[t, e]
    share = 1.0 / max(counted, 1.0)
    said, values = block(roll.acts, total, net.logits, net.outputs), block(roll.acts, total, net.value, 1)
    slopes, value_slopes = block(roll.slopes, total, net.logits, net.outputs), block(roll.slopes, total, net.value, 1)
    vf_coef, ent_coef = weights.vf_coef, weights.ent_coef
    shift, scale = 0.0, 1.0
    if weights.normalize_advantage > 0:
        shift, scale = scale_of_advantages(roll, values, counted)
    for t in range(steps):
        for e in range(envs):
            r = t * envs + e
            weight = share * roll.counts[t, e]
            off = float(roll.returns[t, e]) - float(values[r, 0])
            advantage = (off - shift) * scale
            if net.log_std < 0:
                chosen = int(roll.actions[t, e, 0])
                log_prob, entropy = choice_slopes(said[r], chosen, advantage, ent_coef, weight, slopes[r])
            else:
                spread = slice(net.log_std, net.log_std + net.outputs)
                log_prob, entropy = number_slopes(
                    said[r], theta[spread], roll.actions[t, e], advantage, ent_coef, weight, slopes[r], g[spread]
                )
            value_slopes[r, 0] = -2.0 * vf_coef * weight * off
            sums[0] -= weight * log_prob * advantage
            sums[1] += weight * off * off
            sums[2] += weight * entropy
