"""SClip-EF and GT-NSGDm as plain NumPy, written from the papers' updates: all nodes at once, as matrices."""

import numpy as np


def smooth_clip(y, t, c_phi, tau):
    phi, eps = c_phi * (t + 1) ** -0.5, tau * (t + 1) ** 0.6
    return phi * y / np.sqrt(y * y + eps)


def sclip_ef(x0, gradients, weights, steps, *, c_phi, tau, c_beta, c_eta):
    """Rows are nodes; ``gradients(x, t)`` gives everybody's. Server form with ``weights=None``."""
    x, m = np.array(x0, dtype=float), np.zeros_like(x0, dtype=float)
    for t in range(steps):
        beta, eta = c_beta * (t + 1) ** -0.5, c_eta * (t + 1) ** -0.2
        m = beta * m + (1 - beta) * smooth_clip(gradients(x, t) - m, t, c_phi, tau)
        x = x - eta * m.mean(0) if weights is None else weights @ (x - eta * m)
    return x, m


def gt_nsgdm(x0, gradients, weights, steps, *, beta, eta):
    x, v, y = np.array(x0, dtype=float), np.zeros_like(x0, dtype=float), np.zeros_like(x0, dtype=float)
    for t in range(steps):
        before, v = v, beta * v + (1 - beta) * gradients(x, t)
        y = weights @ (y + v - before)
        x = weights @ (x - eta * y / np.linalg.norm(y, axis=1, keepdims=True))
    return x, v, y
