"""Forward and back through a network that ``Plan`` laid out."""

from __future__ import annotations

from typing import Any

from flockstep.rl.compiled.kernels import (
    add_outer,
    add_product,
    add_rows,
    compiled,
    head_outputs,
    tanh_all,
    through_tanh,
    transpose,
)


@compiled
def block(acts: Any, rows: Any, column: Any, width: Any) -> Any:
    """The activations of one layer, (rows, width)."""
    return acts[rows * column : rows * (column + width)].reshape((rows, width))


@compiled
def forward(theta: Any, layers: Any, acts: Any, rows: Any, first: Any, last: Any) -> None:
    """Layers ``first`` to ``last - 1`` for the given rows of a block, whose observations are in place.

    ``rows`` is (all rows of a block, first row, row after the last).
    """
    total, begin, end = rows
    for k in range(first, last):
        w, b, n_in, n_out, source, target, is_head = layers[k]
        x, y = block(acts, total, source, n_in)[begin:end], block(acts, total, target, n_out)[begin:end]
        weights, biases = theta[w : w + n_in * n_out], theta[b : b + n_out]
        if is_head:
            head_outputs(x, weights.reshape((n_out, n_in)), biases, y)
        else:
            for r in range(end - begin):
                for j in range(n_out):
                    y[r, j] = biases[j]
            add_product(x, weights.reshape((n_in, n_out)), y)
            tanh_all(y)


@compiled
def forward_value(theta: Any, net: Any, acts: Any, rows: Any) -> None:
    """What the critic needs."""
    forward(theta, net.layers, acts, rows, 0, net.shared)
    forward(theta, net.layers, acts, rows, net.shared + net.actor, len(net.layers))


@compiled
def backward(theta: Any, net: Any, acts: Any, slopes: Any, total: Any, rows: Any, g: Any, scratch: Any) -> None:
    """Add to ``g`` the gradient, from the slopes at logits and values of the first ``rows`` rows.

    ``slopes`` is laid out as ``acts``; ``scratch`` holds a transposed matrix.
    """
    for back in range(len(net.layers)):
        k = len(net.layers) - 1 - back
        w, b, n_in, n_out, source, target, is_head = net.layers[k]
        x, y = block(acts, total, source, n_in)[:rows], block(acts, total, target, n_out)[:rows]
        dx, dy = block(slopes, total, source, n_in)[:rows], block(slopes, total, target, n_out)[:rows]
        if not is_head:
            through_tanh(y, dy)
        add_rows(dy, g[b : b + n_out])
        weights, slope = theta[w : w + n_in * n_out], g[w : w + n_in * n_out]
        if is_head:
            add_outer(dy, x, slope.reshape((n_out, n_in)))
        else:
            add_outer(x, dy, slope.reshape((n_in, n_out)))
        if source == 0:
            # Of observations nobody asks a slope.
            continue
        # The critic comes first here and begins what the actor adds to, where both come from shared layers.
        if k != net.shared:
            for r in range(rows):
                for i in range(n_in):
                    dx[r, i] = 0
        if is_head:
            add_product(dy, weights.reshape((n_out, n_in)), dx)
        else:
            turned = scratch[: n_in * n_out].reshape((n_out, n_in))
            transpose(weights.reshape((n_in, n_out)), turned)
            add_product(dy, turned, dx)
