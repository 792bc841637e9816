"""One step of each classic control environment: the state changes in place, reward and end come back."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

# Exactly, so that sums keep their order and states keep gymnasium's bits.
compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=False)

_FALLEN = 12 * 2 * math.pi / 360
"""Radians from upright at which a pole has fallen."""


@compiled
def cartpole(state: Any, action: Any) -> Any:
    """A pole on a cart that is pushed left or right for 0.02 s."""
    gravity, pole, total, half, push, seconds = 9.8, 0.1, 0.1 + 1.0, 0.5, 10.0, 0.02
    x, speed, angle, spin = state[0], state[1], state[2], state[3]
    force = push if action == 1 else -push
    cosine, sine = math.cos(angle), math.sin(angle)
    shove = (force + pole * half * (spin * spin) * sine) / total
    spin_up = (gravity * sine - cosine * shove) / (half * (4.0 / 3.0 - pole * (cosine * cosine) / total))
    speed_up = shove - pole * half * spin_up * cosine / total
    state[0], state[1] = x + seconds * speed, speed + seconds * speed_up
    state[2], state[3] = angle + seconds * spin, spin + seconds * spin_up
    return 1.0, abs(state[0]) > 2.4 or abs(state[2]) > _FALLEN


@compiled
def acrobot(state: Any, action: Any) -> Any:
    """Two links, a motor between them, 0.2 s by one Runge-Kutta step of fourth order."""
    seconds, torque = 0.2, action - 1.0
    a, b, c, d = state[0], state[1], state[2], state[3]
    half = seconds / 2
    p0, p1, p2, p3 = _swing(a, b, c, d, torque)
    q0, q1, q2, q3 = _swing(a + half * p0, b + half * p1, c + half * p2, d + half * p3, torque)
    r0, r1, r2, r3 = _swing(a + half * q0, b + half * q1, c + half * q2, d + half * q3, torque)
    s0, s1, s2, s3 = _swing(a + seconds * r0, b + seconds * r1, c + seconds * r2, d + seconds * r3, torque)
    sixth = seconds / 6.0
    state[0] = _wrapped(a + sixth * (p0 + 2 * q0 + 2 * r0 + s0))
    state[1] = _wrapped(b + sixth * (p1 + 2 * q1 + 2 * r1 + s1))
    state[2] = min(max(c + sixth * (p2 + 2 * q2 + 2 * r2 + s2), -4 * math.pi), 4 * math.pi)
    state[3] = min(max(d + sixth * (p3 + 2 * q3 + 2 * r3 + s3), -9 * math.pi), 9 * math.pi)
    ended = -math.cos(state[0]) - math.cos(state[1] + state[0]) > 1.0
    return (0.0 if ended else -1.0), ended


@compiled
def _swing(first: Any, second: Any, first_speed: Any, second_speed: Any, torque: Any) -> Any:
    """The derivatives of angles and speeds; masses, lengths and moments of inertia are 1, centres lie at 0.5."""
    g = 9.8
    cosine, sine = math.cos(second), math.sin(second)
    d1 = 0.25 + (1.0 + 0.25 + cosine) + 2.0
    d2 = (0.25 + 0.5 * cosine) + 1.0
    phi2 = 0.5 * g * math.cos(first + second - math.pi / 2.0)
    phi1 = (
        -0.5 * second_speed**2 * sine
        - second_speed * first_speed * sine
        + 1.5 * g * math.cos(first - math.pi / 2)
        + phi2
    )
    up2 = (torque + d2 / d1 * phi1 - 0.5 * first_speed**2 * sine - phi2) / (0.25 + 1.0 - d2**2 / d1)
    return first_speed, second_speed, -(d2 * up2 + phi1) / d1, up2


@compiled
def _wrapped(angle: Any) -> Any:
    while angle > math.pi:
        angle -= 2 * math.pi
    while angle < -math.pi:
        angle += 2 * math.pi
    return angle


@compiled
def mountain_car(state: Any, action: Any) -> Any:
    """A car between two hills, with an engine that pushes left, not at all, or right."""
    speed = state[1] + (action - 1.0) * 0.001 + math.cos(3 * state[0]) * (-0.0025)
    speed = min(max(speed, -0.07), 0.07)
    place = min(max(state[0] + speed, -1.2), 0.6)
    state[0], state[1] = place, (0.0 if place == -1.2 and speed < 0 else speed)
    return -1.0, place >= 0.5 and state[1] >= 0


@compiled
def mountain_car_continuous(state: Any, action: Any) -> Any:
    """The same with an engine of any push between -1 and 1, which costs; what is kept of a state is float32."""
    speed = state[1] + (action * 0.0015 - 0.0025 * math.cos(3 * state[0]))
    speed = min(max(speed, -0.07), 0.07)
    place = min(max(state[0] + speed, -1.2), 0.6)
    if place == -1.2 and speed < 0:
        speed = 0.0
    ended = place >= 0.45 and speed >= 0
    state[0], state[1] = np.float32(place), np.float32(speed)
    return (100.0 if ended else 0.0) - 0.1 * action * action, ended


@compiled
def pendulum(state: Any, action: Any) -> Any:
    """A pendulum to be swung up by a weak motor; it never ends by itself."""
    angle, spin, seconds = state[0], state[1], 0.05
    off = (angle + math.pi) % (2 * math.pi) - math.pi
    cost = off**2 + 0.1 * spin**2 + 0.001 * (action * action)
    spin += (15.0 * math.sin(angle) + 3.0 * action) * seconds
    spin = min(max(spin, -8.0), 8.0)
    state[0], state[1] = angle + spin * seconds, spin
    return -cost, False
