"""The algorithms as plain NumPy loops in float64, written from the papers' updates and from nothing in the library.

A problem is a list of gradient functions, one per node: ``gradients[i](x) -> g``, drawing from node i's own stream.
"""

import numpy as np


class Usual:
    """One and a half times the mean of what steps were cut to: ten, then it falls with 1/50 and grows with 1/200."""

    def __init__(self):
        self.mean, self.seen = 0.0, 0

    def __call__(self, length):
        cap = 1.5 * self.mean if self.seen else length
        if length > 0:
            self.seen += 1
            left = min(length, cap)
            over = self.seen if self.seen <= 10 else 200 if left > self.mean else 50
            self.mean += (left - self.mean) / over
        return cap


def data_parallel(x0, gradients, steps, eta, gamma=None):
    x = x0.copy()
    for _ in range(steps):
        g = np.mean([gradient(x) for gradient in gradients], axis=0)
        x -= length_capped(g, eta, gamma)
    return [x] * len(gradients)


def local_sgd(x0, gradients, steps, eta, period, gamma=None):
    """``gamma`` is a number, or "usual": then every node has a cap of its own."""
    xs, caps = [x0.copy() for _ in gradients], [Usual() for _ in gradients]
    for k in range(steps):
        for x, gradient, cap in zip(xs, gradients, caps, strict=True):
            g = gradient(x)
            x -= length_capped(g, eta, cap(eta * np.linalg.norm(g)) if gamma == "usual" else gamma)
        if (k + 1) % period == 0 or k + 1 == steps:
            mean = np.mean(xs, axis=0)
            xs = [mean.copy() for _ in xs]
    return xs


def momentum_update_capped(x0, gradients, steps, eta, period, gamma, momentum):
    """Heavy-ball steps whose length, not whose gradient, is capped."""
    xs, velocity = [x0.copy() for _ in gradients], [np.zeros_like(x0) for _ in gradients]
    for k in range(steps):
        for i, gradient in enumerate(gradients):
            velocity[i] = momentum * velocity[i] + gradient(xs[i])
            change = eta * velocity[i]
            xs[i] -= change * min(1.0, gamma / np.linalg.norm(change))
        if (k + 1) % period == 0 or k + 1 == steps:
            mean = np.mean(xs, axis=0)
            xs = [mean.copy() for _ in xs]
    return xs


def likeness(now, before):
    """Of all nodes' corrections with those of the round before: one number for all of them."""
    now, before = np.concatenate(now), np.concatenate(before)
    norms = np.linalg.norm(now) * np.linalg.norm(before)
    return min(max(now @ before / norms, 0), 1) if norms > 0 else 0


def episode(x0, gradients, steps, eta, period, gamma, published=False):
    xs, c = [x0.copy() for _ in gradients], [np.zeros_like(x0) for _ in gradients]
    cap = Usual() if gamma == "usual" else lambda length: gamma
    for k in range(steps):
        if k % period == 0:
            own = [gradient(x) for x, gradient in zip(xs, gradients, strict=True)]
            everyone = np.mean(own, axis=0)
            before, c = c, [everyone - mine for mine in own]
            share = 1 if published else likeness(c, before)
            gamma = cap(eta * np.linalg.norm(everyone))
            clip = np.linalg.norm(everyone) > gamma / eta
        for i, gradient in enumerate(gradients):
            g = everyone if k % period == 0 and not published else gradient(xs[i]) + share * c[i]
            xs[i] -= gamma * g / np.linalg.norm(g) if clip else eta * g
        if (k + 1) % period == 0 or k + 1 == steps:
            mean = np.mean(xs, axis=0)
            xs = [mean.copy() for _ in xs]
    return xs


def episode_plus(x0, gradients, steps, eta, period, gamma, samples, published=False):
    """``samples[r]`` are the nodes that work in round r. Also gives G and the G_i, for their invariant."""
    x = x0.copy()
    own = [gradient(x) for gradient in gradients]
    everyone = np.mean(own, axis=0)
    share = 1 if published else 0
    cap = Usual() if gamma == "usual" else lambda length: gamma
    for round, start in enumerate(range(0, steps, period)):
        gamma = cap(eta * np.linalg.norm(everyone))
        clip = np.linalg.norm(everyone) > gamma / eta
        ends, change = [], np.zeros_like(x)
        before = [everyone - own[i] for i in samples[round]]
        for i in samples[round]:
            xi, raw = x.copy(), []
            for _ in range(min(period, steps - start)):
                raw.append(gradients[i](xi))
                g = raw[-1] + share * (everyone - own[i])
                xi -= gamma * g / np.linalg.norm(g) if clip else eta * g
            ends.append(xi)
            fresh = np.mean(raw, axis=0)
            change += fresh - own[i]
            own[i] = fresh
        everyone = everyone + change / len(gradients)
        if not published:
            share = likeness([everyone - own[i] for i in samples[round]], before)
        x = np.mean(ends, axis=0)
    return [x] * len(gradients), everyone, own


def length_capped(g, eta, gamma):
    norm = np.linalg.norm(g)
    return g * (eta if gamma is None or norm == 0 else min(eta, gamma / norm))
