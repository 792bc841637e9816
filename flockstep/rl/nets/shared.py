"""What workers share and write without a lock: the policy as one vector, RMSprop's statistics and its step.

A step is one pass over what they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flockstep.rl.settings import Settings
from flockstep.vector import Layout, trainable


@dataclass(frozen=True)
class Shared:
    """Tensors in shared memory. Each worker has slots of its own in ``steps`` and ``updates``."""

    layout: Layout
    theta: Tensor
    squares: Tensor
    steps: Tensor
    updates: Tensor
    stop: Tensor

    @classmethod
    def of(cls, policy: nn.Module, workers: int, *, device: torch.device | str = "cpu") -> Shared:
        """The parameters of a policy as they are; statistics as RMSprop begins with, at 1.

        On a device other than the host's they are for workers of one process.
        """
        layout = Layout.of(policy)
        theta = layout.pack(p.detach().to(device) for p in trainable(policy))
        steps, updates, stop = (torch.zeros(count, dtype=torch.int64) for count in (workers, workers, 1))
        shared = cls(layout, theta, torch.ones_like(theta), steps, updates, stop)
        if workers > 1 and shared.on_host:
            for tensor in (shared.theta, shared.squares, shared.steps, shared.updates, shared.stop):
                tensor.share_memory_()  # type: ignore[no-untyped-call]
        return shared

    @property
    def on_host(self) -> bool:
        """Or on a device, for workers of one process."""
        return self.theta.device.type == "cpu"

    @torch.no_grad()
    def read(self, parameters: Sequence[Tensor]) -> None:
        """Copy the vector to parameters; coordinates may be of different ages."""
        for parameter, view in zip(parameters, self.layout.views(self.theta), strict=True):
            parameter.copy_(view)

    @torch.no_grad()
    def write(self, parameters: Iterable[Tensor]) -> None:
        """Copy parameters to the vector."""
        for parameter, view in zip(parameters, self.layout.views(self.theta), strict=True):
            view.copy_(parameter)


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


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=False)
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
