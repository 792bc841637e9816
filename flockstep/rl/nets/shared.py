"""What workers share and write without a lock: the policy as one vector, the optimizer's statistics, their counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
