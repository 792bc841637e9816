"""Roll-outs: what a policy meets in some steps of its environments, with the activations that its gradient needs."""

from __future__ import annotations

from typing import Any, NamedTuple

from flockstep.rl.compiled.classic import begin, bounded, move, observe
from flockstep.rl.compiled.heads import draw
from flockstep.rl.compiled.kernels import compiled
from flockstep.rl.compiled.network import block, forward, forward_value
from flockstep.rl.compiled.scaling import normalize

GOES_ON, TERMINATED, TRUNCATED = range(3)


class Rollout(NamedTuple):
    """Arrays of ``steps`` steps in ``envs`` environments; what an episode meets next is (steps, envs)."""

    acts: Any
    """Activations of (steps + 1) * envs rows, a block per layer; the last envs rows are what lies beyond."""
    slopes: Any
    """Laid out alike: slopes of the loss."""
    actions: Any
    """(steps, envs, dims): a choice in the first place, or numbers."""
    rewards: Any
    ends: Any
    """GOES_ON, TERMINATED or TRUNCATED."""
    final_values: Any
    """The value of an episode's last observation, where it was cut short."""
    returns: Any
    counts: Any
    """0 where an environment only began a new episode."""
    met: Any
    """What is to be added to the statistics."""


class World(NamedTuple):
    """Classic control environments of one kind, and what their episodes have collected."""

    kind: Any
    limit: Any
    states: Any
    ages: Any
    scores: Any


class Finished(NamedTuple):
    """Episodes that ended: returns and lengths, and in ``count[0]`` how many."""

    returns: Any
    lengths: Any
    count: Any


@compiled
def act(theta: Any, net: Any, roll: Any, t: Any, rng: Any) -> None:
    """Look at the observations of step t, and draw actions."""
    steps, envs = roll.rewards.shape
    rows = ((steps + 1) * envs, t * envs, (t + 1) * envs)
    normalize(theta, net, block(roll.acts, rows[0], 0, net.layers[0, 2])[rows[1] : rows[2]], roll.met, True)
    forward(theta, net.layers, roll.acts, rows, 0, len(net.layers))
    said = block(roll.acts, rows[0], net.logits, net.outputs)[rows[1] : rows[2]]
    draw(theta, net, said, rng, roll.actions[t])


@compiled
def values_beyond(theta: Any, net: Any, roll: Any, first: Any, last: Any) -> None:
    """The values of what environments ``first`` to ``last - 1`` show in the rows that lie beyond the roll-out."""
    steps, envs = roll.rewards.shape
    rows = ((steps + 1) * envs, steps * envs + first, steps * envs + last)
    normalize(theta, net, block(roll.acts, rows[0], 0, net.layers[0, 2])[rows[1] : rows[2]], roll.met, False)
    forward_value(theta, net, roll.acts, rows)


@compiled
def note(finished: Finished, score: Any, age: Any) -> None:
    """An episode has ended."""
    n = finished.count[0]
    if n < finished.returns.size:
        finished.returns[n], finished.lengths[n] = score, age
        finished.count[0] = n + 1


@compiled
def collect(theta: Any, net: Any, inputs: Any, roll: Any, world: Any, rng: Any, finished: Any) -> None:
    """A roll-out in classic control environments."""
    steps, envs = roll.rewards.shape
    seen = block(roll.acts, (steps + 1) * envs, 0, inputs)
    beyond = block(roll.acts, (steps + 1) * envs, net.value, 1)
    for e in range(envs):
        observe(world.kind, world.states[e], seen[e])
    for t in range(steps):
        act(theta, net, roll, t, rng)
        for e in range(envs):
            state = world.states[e]
            reward, ended = move(world.kind, state, bounded(world.kind, roll.actions[t, e, 0]))
            world.ages[e] += 1
            world.scores[e] += reward
            roll.rewards[t, e] = reward
            roll.ends[t, e] = TERMINATED if ended else TRUNCATED if world.ages[e] >= world.limit else GOES_ON
            if roll.ends[t, e] != GOES_ON:
                if roll.ends[t, e] == TRUNCATED:
                    observe(world.kind, state, seen[steps * envs + e])
                    values_beyond(theta, net, roll, e, e + 1)
                    roll.final_values[t, e] = beyond[steps * envs + e, 0]
                note(finished, world.scores[e], world.ages[e])
                world.ages[e], world.scores[e] = 0, 0.0
                begin(world.kind, rng, state)
            observe(world.kind, state, seen[(t + 1) * envs + e])
    values_beyond(theta, net, roll, 0, envs)
