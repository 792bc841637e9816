"""SwarmSGD's relatives as plain NumPy loops in float64, from the papers' updates and from nothing in the library.

A problem is a list of gradient functions, one per node: ``gradients[i](x) -> g``, drawing from node i's own stream.
Models are the rows of one matrix.
"""

import numpy as np


def ring(size):
    """Each node and its two neighbours a third each; two nodes a half each."""
    share = 1 / min(size, 3)
    matrix = np.zeros((size, size))
    for i in range(size):
        for j in {i - 1, i, (i + 1) % size}:
            matrix[i, j % size] = share
    return matrix


def star(size):
    """An nth along each edge, so that leaves keep nearly all of themselves."""
    matrix = np.eye(size) * (1 - 1 / size)
    matrix[0, :] = matrix[:, 0] = 1 / size
    return matrix


def exact(v):
    return v


def half(v):
    """What is left of a vector in 16-bit floating point, by way of 32 bits, as in torch."""
    return v.astype(np.float32).astype(np.float16).astype(np.float64)


def all_gradients(gradients, xs):
    return np.array([gradient(x) for gradient, x in zip(gradients, xs, strict=True)])


def gossip(x0, gradients, steps, eta, w, coded=exact, decay=0.0, overlap=False):
    """Overlapped, the step, with its weight decay, is taken on the mixed models, from gradients at those before."""
    xs = np.array([x0] * len(gradients))

    def mixed(xs):
        seen = coded(xs)
        return xs + w @ seen - seen

    for _ in range(steps):
        g = all_gradients(gradients, xs)
        xs = (1 - eta * decay) * mixed(xs) - eta * g if overlap else mixed((1 - eta * decay) * xs - eta * g)
    return mixed(xs) if overlap else xs


def choco(x0, gradients, steps, eta, w, gamma, coded=exact):
    """With everybody's estimate of everybody, as in the paper, not only the sums a node needs."""
    xs = np.array([x0] * len(gradients))
    estimates = xs.copy()
    for _ in range(steps):
        xs = xs - eta * all_gradients(gradients, xs)
        estimates = estimates + coded(xs - estimates)
        for i in range(len(xs)):
            xs[i] += gamma * sum(w[i, j] * (estimates[j] - estimates[i]) for j in range(len(xs)))
    return xs


def halves_to_powers_of_two(size, round):
    """Column j: where node j's mass goes."""
    matrix = np.eye(size)
    if size > 1:
        hops = [hop for hop in (1, 2, 4, 8, 16) if hop < size]
        hop = hops[round % len(hops)]
        matrix /= 2
        for j in range(size):
            matrix[(j + hop) % size, j] += 0.5
    return matrix


def all_to_node_0(size, round):
    """Node 0 gives a third each to its next two; everybody else gives half to node 0."""
    matrix = np.zeros((size, size))
    for j in range(size):
        targets = {1 % size, 2 % size} - {0} if j == 0 else {0}
        for i in targets | {j}:
            matrix[i, j] = 1 / (len(targets) + 1)
    return matrix


def gradient_push(x0, gradients, steps, eta, p, overlap=False):
    """The models z = x / w, then x and w themselves."""
    size = len(gradients)
    xs, ws = np.array([x0] * size), np.ones((size, 1))
    for k in range(0 if overlap else steps):
        xs = xs - eta * all_gradients(gradients, xs / ws)
        xs, ws = p(size, k) @ xs, p(size, k) @ ws
    for k in range(steps + 1 if overlap else 0):
        zs = xs / ws
        xs, ws = p(size, k) @ xs, p(size, k) @ ws
        if k < steps:
            xs = xs - eta * all_gradients(gradients, zs)
    return xs / ws, xs, ws


def noloco(x0, gradients, steps, eta, period, lr, beta, pairs):
    """``pairs[r]`` maps each node of round r to its partner."""
    theta = np.array([x0] * len(gradients))
    phi, m = theta.copy(), np.zeros_like(theta)
    for k in range(steps):
        theta = theta - eta * all_gradients(gradients, theta)
        if (k + 1) % period == 0 or k + 1 == steps:
            delta, before = theta - phi, phi.copy()
            for i in range(len(theta)):
                j = pairs[k // period].get(i, i)
                mean_delta, mean_phi = (delta[i] + delta[j]) / 2, (before[i] + before[j]) / 2
                m[i] = beta * m[i] + lr * mean_delta + lr * (mean_phi - before[i])
                phi[i] = before[i] + m[i]
            theta = phi.copy()
    return theta
