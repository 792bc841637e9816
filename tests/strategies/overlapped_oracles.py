"""HPSGD and its family as plain NumPy loops in float64, written from the equations and not from the library."""

import numpy as np


def hpsgd(x0, gradients, steps, eta, k, outer_lr=1.0):
    """W_{r+1} = W_r - outer_lr * mean change_{r-1}; a replica restarts from W at every merge."""
    world, replicas, flying, taken = x0.copy(), [x0.copy() for _ in gradients], None, 0
    for _ in range(steps):
        for x, gradient in zip(replicas, gradients, strict=True):
            x -= eta * gradient(x)
        taken += 1
        if taken == k:
            changes = [world - x for x in replicas]
            if flying is not None:
                world = world - outer_lr * np.mean(flying, axis=0)
            flying, replicas, taken = changes, [world.copy() for _ in replicas], 0
    changes = [world - x for x in replicas]
    if flying is not None:
        world = world - outer_lr * np.mean(flying, axis=0)
    if taken:
        world = world - outer_lr * np.mean(changes, axis=0)
    return [world] * len(gradients)


def hpsgd_pulled(x0, gradients, steps, eta, k, outer_lr, pull):
    """The same W, as sums of gradients: a replica gives up a share of its lead on it at every merge."""
    n, world, replicas = len(gradients), x0.copy(), [x0.copy() for _ in gradients]
    under_way = learned = np.zeros_like(x0)
    for t in range(1, steps + 1):
        for i, gradient in enumerate(gradients):
            step = eta * gradient(replicas[i])
            replicas[i] = replicas[i] - step
            learned = learned + step / n
        if t % k == 0:
            world = world - outer_lr * under_way
            under_way, learned = learned, np.zeros_like(x0)
            replicas = [(1 - pull) * x + pull * world for x in replicas]
    return [world - outer_lr * (under_way + learned)] * n


def cocod(x0, gradients, steps, eta, period, pull):
    """x <- x + pull (mean(s) - s)."""
    xs = [x0.copy() for _ in gradients]
    snapshots = [x.copy() for x in xs]
    for k in range(steps):
        for x, gradient in zip(xs, gradients, strict=True):
            x -= eta * gradient(x)
        if (k + 1) % period == 0:
            mean = np.mean(snapshots, axis=0)
            xs = [x + pull * (mean - s) for x, s in zip(xs, snapshots, strict=True)]
            snapshots = [x.copy() for x in xs]
    mean = np.mean(snapshots, axis=0)
    xs = [x + pull * (mean - s) for x, s in zip(xs, snapshots, strict=True)]
    return [np.mean(xs, axis=0)] * len(xs)


def overlap_local_sgd(x0, gradients, steps, eta, period, pull, beta, published=False):
    """The anchor z follows, with momentum, the mean of a period ago. Published: x <- (1 - a) x + a z; otherwise what a
    node has learned since then stays: x <- x + a (z - x as it was then)."""
    xs = [x0.copy() for _ in gradients]
    anchor, velocity, then = x0.copy(), np.zeros_like(x0), [x0.copy() for _ in gradients]
    for k in range(steps):
        for x, gradient in zip(xs, gradients, strict=True):
            x -= eta * gradient(x)
        if (k + 1) % period == 0:
            velocity = beta * velocity + (np.mean(then, axis=0) - anchor)
            anchor = anchor + velocity
            xs = [x + pull * (anchor - (x if published else old)) for x, old in zip(xs, then, strict=True)]
            then = [x.copy() for x in xs]
    return [np.mean(xs, axis=0)] * len(xs)


class Nesterov:
    """As torch.optim.SGD(nesterov=True); without a momentum, that of the round on so many nodes, by the period."""

    def __init__(self, like, lr, momentum, nodes=1, period=1):
        self.lr, self.momentum, self.velocity = lr, momentum, np.zeros_like(like)
        self.nodes, self.period, self.round = nodes, period, 0

    def __call__(self, world, change):
        self.round += 1
        mu = self.momentum
        if mu is None:
            gain = max(1.0, self.round / 5)
            mu = 1 - 1 / min(gain, np.sqrt(self.nodes), 1 + self.period / 8)
        self.velocity = mu * self.velocity + change
        return world - self.lr * (change + mu * self.velocity)


def diloco(x0, gradients, steps, eta, period, lr, momentum):
    world, xs, outer = x0.copy(), [x0.copy() for _ in gradients], Nesterov(x0, lr, momentum, len(gradients), period)
    for k in range(steps):
        for x, gradient in zip(xs, gradients, strict=True):
            x -= eta * gradient(x)
        if (k + 1) % period == 0 or k + 1 == steps:
            world = outer(world, np.mean([world - x for x in xs], axis=0))
            xs = [world.copy() for _ in xs]
    return xs


def eager_diloco(x0, gradients, steps, eta, period, lr, momentum):
    """Each node's own outer step: the others' old changes, its own fresh one."""
    n = len(gradients)
    worlds, xs = [x0.copy() for _ in gradients], [x0.copy() for _ in gradients]
    outers, old = [Nesterov(x0, lr, momentum, n, period) for _ in gradients], None
    for k in range(steps):
        for x, gradient in zip(xs, gradients, strict=True):
            x -= eta * gradient(x)
        if (k + 1) % period == 0 or k + 1 == steps:
            fresh = [world - x for world, x in zip(worlds, xs, strict=True)]
            for i in range(n):
                others = fresh[i] if old is None else (sum(old) - old[i] + fresh[i]) / n
                worlds[i] = outers[i](worlds[i], others)
            old, xs = fresh, [world.copy() for world in worlds]
    return [np.mean(worlds, axis=0)] * n


def eager_diloco_keeping(x0, gradients, steps, eta, period, lr, momentum):
    """One global model, which takes changes a period late; nodes keep what they learned, and half of their distance."""
    world, outer = x0.copy(), Nesterov(x0, lr, momentum, len(gradients), period)
    xs, flying = [x0.copy() for _ in gradients], None
    for k in range(steps):
        for x, gradient in zip(xs, gradients, strict=True):
            x -= eta * gradient(x)
        if (k + 1) % period == 0 or k + 1 == steps:
            if flying is not None:
                before, centre = world, np.mean(flying, axis=0)
                world = outer(world, centre)
                for x, old in zip(xs, flying, strict=True):
                    x += (world - before + centre) + 0.5 * (old - centre)
            flying = [world - x for x in xs]
    world = outer(world, np.mean(flying, axis=0))
    return [world] * len(gradients)


def streaming_diloco(x0, gradients, steps, eta, *, period, cuts, delay, alpha, lr, momentum, seen=None):
    """Fragments [cuts[p], cuts[p+1]) leave ``delay`` steps before their turn, (p+1) H/P (mod H), and land on it.

    Without an alpha, what was learned in between is kept.
    """
    count = len(cuts) - 1
    world, xs = x0.copy(), [x0.copy() for _ in gradients]
    outers = [Nesterov(x0[cuts[p] : cuts[p + 1]], lr, momentum, len(gradients), period) for p in range(count)]
    flying = {}

    def part(p):
        return slice(cuts[p], cuts[p + 1])

    def land(p):
        _, sent = flying.pop(p)
        change = np.mean([world[part(p)] - x for x in sent], axis=0)
        world[part(p)] = outers[p](world[part(p)], change)
        for x, before in zip(xs, sent, strict=True):
            if alpha is None:
                x[part(p)] = world[part(p)] + x[part(p)] - before
            else:
                x[part(p)] = (1 - alpha) * world[part(p)] + alpha * x[part(p)]

    for t in range(1, steps + 1):
        for x, gradient in zip(xs, gradients, strict=True):
            x -= eta * gradient(x)
        for p in range(count):
            if (t + delay) % period == (p + 1) * period // count % period:
                flying[p] = t, [x[part(p)].copy() for x in xs]
            if p in flying and t - flying[p][0] >= delay:
                land(p)
        if seen is not None:
            seen.append(xs[0].copy())
    for p in range(count):
        if p in flying:
            land(p)
        if (steps + delay) % period != (p + 1) * period // count % period:
            world[part(p)] = outers[p](world[part(p)], np.mean([world[part(p)] - x[part(p)] for x in xs], axis=0))
    return [world] * len(gradients)
