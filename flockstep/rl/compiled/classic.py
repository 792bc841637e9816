"""gymnasium's classic control environments as compiled functions of a state.

Dynamics, rewards, ends and the distribution of starts are gymnasium's, and tested against it step by step. States are
float64 as there; a car with a continuous engine keeps its state in float32, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flockstep.rl.compiled.motion import acrobot, cartpole, compiled, mountain_car, mountain_car_continuous, pendulum

CARTPOLE, ACROBOT, CAR, CAR_CONTINUOUS, PENDULUM = range(5)


@dataclass(frozen=True)
class Classic:
    """One of them under a name of gymnasium's."""

    kind: int
    limit: int
    """Steps after which an episode is cut short."""


KNOWN = {
    "CartPole-v0": Classic(CARTPOLE, 200),
    "CartPole-v1": Classic(CARTPOLE, 500),
    "Acrobot-v1": Classic(ACROBOT, 500),
    "MountainCar-v0": Classic(CAR, 200),
    "MountainCarContinuous-v0": Classic(CAR_CONTINUOUS, 999),
    "Pendulum-v1": Classic(PENDULUM, 200),
}

STATE = 4
"""Numbers that the largest state has."""


@compiled
def begin(kind: Any, rng: Any, state: Any) -> None:
    """A new episode's state, drawn as gymnasium draws it."""
    if kind == CARTPOLE:
        for k in range(4):
            state[k] = rng.uniform(-0.05, 0.05)
    elif kind == ACROBOT:
        for k in range(4):
            state[k] = np.float32(rng.uniform(-0.1, 0.1))
    elif kind == PENDULUM:
        state[0] = rng.uniform(-math.pi, math.pi)
        state[1] = rng.uniform(-1.0, 1.0)
    else:
        state[0] = rng.uniform(-0.6, -0.4)
        state[1] = 0.0


@compiled
def move(kind: Any, state: Any, action: Any) -> Any:
    """One step with an action (a choice, or a number within bounds): reward, and whether the episode has ended."""
    if kind == CARTPOLE:
        return cartpole(state, action)
    if kind == ACROBOT:
        return acrobot(state, action)
    if kind == CAR:
        return mountain_car(state, action)
    if kind == CAR_CONTINUOUS:
        return mountain_car_continuous(state, action)
    return pendulum(state, action)


@compiled
def observe(kind: Any, state: Any, out: Any) -> None:
    """What an agent sees of a state."""
    if kind == ACROBOT:
        out[0], out[1] = math.cos(state[0]), math.sin(state[0])
        out[2], out[3] = math.cos(state[1]), math.sin(state[1])
        out[4], out[5] = state[2], state[3]
    elif kind == PENDULUM:
        out[0], out[1], out[2] = math.cos(state[0]), math.sin(state[0]), state[1]
    else:
        for k in range(out.size):
            out[k] = state[k]


@compiled
def bounded(kind: Any, action: Any) -> Any:
    """An action as the environment may be given it: numbers are cut to their bounds, as float32."""
    if kind == PENDULUM:
        return float(np.float32(min(max(action, -2.0), 2.0)))
    if kind == CAR_CONTINUOUS:
        return float(np.float32(min(max(action, -1.0), 1.0)))
    return float(action)
