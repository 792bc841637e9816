"""From a roll-out to the next parameters; and both, over and over, for one thread among others."""

from __future__ import annotations

from typing import Any, NamedTuple

from flockstep.rl.compiled.compiled_rollout import GOES_ON, TERMINATED, collect
from flockstep.rl.compiled.heads import loss_slopes
from flockstep.rl.compiled.kernels import compiled
from flockstep.rl.compiled.network import backward, block
from flockstep.rl.compiled.scaling import add, scale_rewards


class Weights(NamedTuple):
    """The numbers of an update, as compiled loops read them."""

    gamma: Any
    vf_coef: Any
    ent_coef: Any
    gae_lambda: Any
    normalize_advantage: Any
    """1 or 0."""
    max_grad_norm: Any
    rms_decay: Any
    rms_eps: Any


class Own(NamedTuple):
    """What one thread has for itself: a copy of the parameters, a gradient, room for a matrix."""

    theta: Any
    g: Any
    scratch: Any


@compiled
def fill_returns(net: Any, roll: Any, gamma: Any, gae_lambda: Any) -> None:
    """Returns, back from the values that lie beyond; see rl/returns.py."""
    steps, envs = roll.rewards.shape
    beyond = block(roll.acts, (steps + 1) * envs, net.value, 1)
    for e in range(envs):
        after = float(beyond[steps * envs + e, 0])
        for back in range(steps):
            t = steps - 1 - back
            if roll.ends[t, e] == TERMINATED:
                after = 0.0
            elif roll.ends[t, e] != GOES_ON:
                after = float(roll.final_values[t, e])
            elif back > 0:
                after = gae_lambda * after + (1.0 - gae_lambda) * float(beyond[(t + 1) * envs + e, 0])
            after = roll.rewards[t, e] + gamma * after
            roll.returns[t, e] = after


@compiled
def gradient(net: Any, roll: Any, own: Any, weights: Any, sums: Any) -> None:
    """The gradient of the loss of a roll-out, into ``own.g``; the loss's parts are added to ``sums``."""
    steps, envs = roll.rewards.shape
    scale_rewards(own.theta, net, roll, roll.met, weights.gamma)
    fill_returns(net, roll, weights.gamma, weights.gae_lambda)
    for k in range(own.g.size):
        own.g[k] = 0
    loss_slopes(own.theta, net, roll, weights, own.g, sums)
    backward(own.theta, net, roll.acts, roll.slopes, (steps + 1) * envs, steps * envs, own.g, own.scratch)


@compiled
def clip(g: Any, longest: Any) -> None:
    """Shorten a gradient to ``longest``, as torch.nn.utils.clip_grad_norm_ does."""
    total = 0.0
    for k in range(g.size):
        total += g[k] * g[k]
    factor = longest / (total**0.5 + 1e-6)
    if factor < 1:
        shrink = g.dtype.type(factor)
        for k in range(g.size):
            g[k] *= shrink


@compiled
def descend(theta: Any, squares: Any, own: Any, rate: Any, weights: Any) -> None:
    """RMSprop in TensorFlow's form, on parameters and statistics that others may be writing too.

    What it writes is copied at once for the next roll-out: fetched again, it would come from another core's cache.
    """
    g, kind = own.g, own.g.dtype.type
    keep, take, eps, eta = kind(weights.rms_decay), kind(1 - weights.rms_decay), kind(weights.rms_eps), kind(rate)
    for k in range(g.size):
        square = keep * squares[k] + take * g[k] * g[k]
        squares[k] = square
        now = theta[k] - eta * g[k] / (square + eps) ** kind(0.5)
        theta[k] = now
        own.theta[k] = now


@compiled
def improve(theta: Any, squares: Any, net: Any, roll: Any, own: Any, weights: Any, rate: Any, sums: Any) -> None:
    """Learn from a roll-out that is complete, and be ready for the next."""
    gradient(net, roll, own, weights, sums)
    clip(own.g, weights.max_grad_norm)
    descend(theta, squares, own, rate, weights)
    add(theta, own.theta, net.seen, roll.met.seen)
    add(theta, own.theta, net.rewarded, roll.met.rewarded)
    sums[3] += 1


@compiled
def train(
    theta: Any,
    squares: Any,
    net: Any,
    inputs: Any,
    roll: Any,
    world: Any,
    own: Any,
    weights: Any,
    rates: Any,
    rng: Any,
    finished: Any,
    sums: Any,
) -> None:
    """An update for each of ``rates``: copy what all share, roll out, and write the step into what all share."""
    for i in range(theta.size):
        own.theta[i] = theta[i]
    for k in range(rates.size):
        collect(own.theta, net, inputs, roll, world, rng, finished)
        improve(theta, squares, net, roll, own, weights, rates[k], sums)
