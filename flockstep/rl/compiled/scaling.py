"""Observations and rewards, normalized by what all threads and machines have met.

    (count, sum, sum of squares) per number of an observation, in the vector that is shared
    observation <- (observation - mean) / deviation;     reward <- reward / deviation of R,  R <- gamma R + reward

both no farther than 10 from 0. A roll-out is normalized by what had been met when it began; what it met is added with
its update. See ``rl/policies/mlp.py`` for the same in torch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from flockstep.rl.compiled.kernels import compiled
from flockstep.rl.compiled.layout import Plan
from flockstep.rl.compiled.memory import apart
from flockstep.rl.policies.mlp import FARTHEST, SMALL


class Met(NamedTuple):
    """What a thread has met since its last update, laid out as in the shared vector; and what its episodes brought."""

    seen: Any
    rewarded: Any
    collected: Any
    """R of each environment."""


def nothing_met(plan: Plan, envs: int, dtype: Any) -> Met:
    """Room for it."""
    inputs = int(plan.net.layers[0, 2])
    return Met(apart(1 + 2 * inputs, dtype), apart(3, dtype), apart(envs, dtype))


@compiled
def mean_and_deviation(theta: Any, begin: Any, width: Any, i: Any) -> Any:
    """Of number i of ``width``."""
    count = theta[begin]
    mean = theta[begin + 1 + i] / count
    return mean, math.sqrt(max(theta[begin + 1 + width + i] / count - mean * mean, 0.0) + SMALL)


@compiled
def normalize(theta: Any, net: Any, rows: Any, met: Any, counts: Any) -> None:
    """Observations in place; those that are to act on are counted."""
    if net.seen < 0:
        return
    width = rows.shape[1]
    if counts:
        met.seen[0] += rows.shape[0]
    for i in range(width):
        mean, deviation = mean_and_deviation(theta, net.seen, width, i)
        for r in range(rows.shape[0]):
            x = rows[r, i]
            if counts:
                met.seen[1 + i] += x
                met.seen[1 + width + i] += x * x
            rows[r, i] = min(max((x - mean) / deviation, -FARTHEST), FARTHEST)


@compiled
def scale_rewards(theta: Any, net: Any, roll: Any, met: Any, gamma: Any) -> None:
    """Rewards of a whole roll-out in place, which are counted."""
    if net.rewarded < 0:
        return
    steps, envs = roll.rewards.shape
    _, deviation = mean_and_deviation(theta, net.rewarded, 1, 0)
    for e in range(envs):
        for t in range(steps):
            if roll.counts[t, e] == 0:
                # An episode only began.
                continue
            total = gamma * met.collected[e] + roll.rewards[t, e]
            met.rewarded[0] += 1
            met.rewarded[1] += total
            met.rewarded[2] += total * total
            met.collected[e] = 0 if roll.ends[t, e] else total
            roll.rewards[t, e] = min(max(roll.rewards[t, e] / deviation, -FARTHEST), FARTHEST)


@compiled
def add(theta: Any, own: Any, begin: Any, news: Any) -> None:
    """Let all know, and begin anew."""
    if begin < 0:
        return
    for k in range(news.size):
        theta[begin + k] += news[k]
        own[begin + k] = theta[begin + k]
        news[k] = 0
