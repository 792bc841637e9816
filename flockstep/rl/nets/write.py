"""The step of RMSprop on what workers share, in one pass over it.

    s <- decay s + (1 - decay) g^2,      theta <- theta - lr g / sqrt(s + eps)

Without a lock a number may be written by two at once, and one store is lost; in one pass there is little time for that,
and no statistic is ever seen half-way. The numbers are those of ``RMSpropTF``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flockstep.rl.nets.shared import Shared
from flockstep.rl.settings import Settings


def write(shared: Shared, gradients: Sequence[Tensor | None], settings: Settings, rate: float) -> None:
    """One step with clipped gradients; parameters that have none stay."""
    known = [gradient for gradient in gradients if gradient is not None]
    if not known:
        return
    length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in known]))
    scale = min(1.0, settings.max_grad_norm / (length.item() + 1e-6))
    theta, squares = shared.theta.numpy(), shared.squares.numpy()
    decay = settings.rms_decay
    # In the precision of what they meet, so that a step is computed in it.
    numbers = [theta.dtype.type(number) for number in (scale, decay, 1 - decay, settings.rms_eps, rate)]
    for start, gradient in zip(shared.layout.starts, gradients, strict=True):
        if gradient is not None:
            row = gradient.detach().cpu().reshape(-1).numpy()
            here = slice(start, start + len(row))
            _step(theta[here], squares[here], row, *numbers)


@torch.no_grad()
def write_there(shared: Shared, settings: Settings, rate: Tensor, *gradients: Tensor | None) -> tuple[()]:
    """The same on a device, of which nobody waits."""
    if all(gradient is None for gradient in gradients):
        return ()
    views = [shared.layout.views(vector) for vector in (shared.theta, shared.squares)]
    rows = [(theta, square, g) for theta, square, g in zip(*views, gradients, strict=True) if g is not None]
    thetas, squares, known = (list(column) for column in zip(*rows, strict=True))
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(known)))
    scaled = torch._foreach_mul(known, (settings.max_grad_norm / (length + 1e-6)).clamp(max=1.0))
    torch._foreach_mul_(squares, settings.rms_decay)
    torch._foreach_addcmul_(squares, scaled, scaled, 1 - settings.rms_decay)
    roots = torch._foreach_add(squares, settings.rms_eps)
    torch._foreach_sqrt_(roots)
    torch._foreach_mul_(scaled, -rate)
    torch._foreach_addcdiv_(thetas, scaled, roots, 1.0)
    return ()


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _step(
    theta: NDArray[Any],
    squares: NDArray[Any],
    gradient: NDArray[Any],
    scale: Any,
    decay: Any,
    new: Any,
    eps: Any,
    rate: Any,
) -> None:
    for i in range(len(theta)):
        g = gradient[i] * scale
        square = decay * squares[i] + new * g * g
        squares[i] = square
        theta[i] -= rate * g / np.sqrt(square + eps)
