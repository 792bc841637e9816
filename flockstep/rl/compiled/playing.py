"""Whole episodes in compiled environments, for what a policy is worth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flockstep.rl.compiled.classic import KNOWN, STATE, begin, bounded, move, observe
from flockstep.rl.compiled.heads import draw, most_likely
from flockstep.rl.compiled.kernels import compiled
from flockstep.rl.compiled.layout import Plan
from flockstep.rl.compiled.network import block, forward
from flockstep.rl.compiled.scaling import normalize, nothing_met


@compiled
def play(theta: Any, net: Any, inputs: Any, acts: Any, world: Any, likeliest: Any, rng: Any, returns: Any) -> None:
    """An episode for each of ``returns``, side by side; ``world`` is (kind, limit, states, actions, met)."""
    kind, limit, states, actions, met = world
    count = returns.size
    playing, left = np.ones(count, np.bool_), count
    seen = block(acts, count, 0, inputs)
    for e in range(count):
        begin(kind, rng, states[e])
    for _ in range(limit):
        if left == 0:
            break
        for e in range(count):
            observe(kind, states[e], seen[e])
        normalize(theta, net, seen, met, False)
        forward(theta, net.layers, acts, (count, 0, count), 0, net.shared + net.actor)
        said = block(acts, count, net.logits, net.outputs)
        if likeliest:
            most_likely(net, said, actions)
        else:
            draw(theta, net, said, rng, actions)
        for e in range(count):
            if playing[e]:
                reward, ended = move(kind, states[e], bounded(kind, actions[e, 0]))
                returns[e] += reward
                if ended:
                    playing[e] = False
                    left -= 1


def returns_of(
    theta: NDArray[Any], plan: Plan, env: str, inputs: int, *, episodes: int, likeliest: bool, rng: np.random.Generator
) -> NDArray[Any]:
    """The returns of so many episodes in a compiled environment."""
    known, returns = KNOWN[env], np.zeros(episodes)
    acts = np.zeros(episodes * plan.columns, theta.dtype)
    dims = max(1, int(plan.net.outputs)) if plan.net.log_std >= 0 else 1
    states, actions = np.zeros((episodes, STATE)), np.zeros((episodes, dims), theta.dtype)
    world = (known.kind, known.limit, states, actions, nothing_met(plan, 1, theta.dtype))
    play(theta, plan.net, inputs, acts, world, likeliest, rng, returns)
    return returns
