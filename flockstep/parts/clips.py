"""Clips: gradient in, tamer gradient out.

They change the gradient in place. One whose norm is not finite is refused by returning None: the node skips that step
and counts it. On a GPU, waiting for a norm at every step would cost more than the clip: there everything is decided on
the device, a gradient that is not finite becomes zero (an optimizer with momentum coasts, another stands still), and
both are counted without being looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from flockstep import check
from flockstep.node import Node
from flockstep.vector import norm


@dataclass(frozen=True)
class NoClip:
    """The gradient as it is."""

    def __call__(self, g: Tensor, node: Node) -> Tensor:
        """The same gradient."""
        return g


@dataclass(frozen=True, kw_only=True)
class ClipNorm:
    """g * min(1, max_norm / ||g||): the norm over the whole vector, before weight decay and momentum."""

    max_norm: float

    def __post_init__(self) -> None:
        check.positive(self, "max_norm", self.max_norm)

    def __call__(self, g: Tensor, node: Node) -> Tensor | None:
        """The gradient, no longer than ``max_norm``."""
        return scaled_to(self.max_norm, g, norm(g), node)


@dataclass(frozen=True, kw_only=True)
class ClipStep:
    """min(eta, gamma / ||g||) * g: gamma caps the length of a plain SGD step, eta is the optimizer's learning rate now.

    A number gamma goes with the learning rate: when a scheduler has brought eta to a tenth of its initial value, the
    cap is gamma / 10, as in the authors' runs. A function of the step is taken as it stands.
    """

    gamma: float | Callable[[int], float]

    def __post_init__(self) -> None:
        if not callable(self.gamma):
            check.positive(self, "gamma", self.gamma)

    def __call__(self, g: Tensor, node: Node) -> Tensor | None:
        """The gradient whose step is no longer than gamma."""
        if callable(self.gamma):
            return scaled_to(self.gamma(node.step_count - 1), g, node.step_length(g), node)
        return scaled_to(self.gamma, g, node.step_length(g, initial=True), node)


def scaled_to(cap: float, g: Tensor, length: Tensor, node: Node) -> Tensor | None:
    """``g`` scaled in place by min(1, cap / length), counted when it was; None where the length is not finite."""
    if g.device.type != "cpu":
        return _scaled_unseen(cap, g, length, node)
    told = float(length)
    if not math.isfinite(told):
        return None
    if told > cap:
        node.count("clipped")
        g *= cap / told
    return g


def _scaled_unseen(cap: float, g: Tensor, length: Tensor, node: Node) -> Tensor:
    finite = length.isfinite()
    node.count("clipped", finite & (length > cap))
    node.count("not finite", ~finite)
    g *= (cap / length).clamp(max=1.0)
    return g.masked_fill_(~finite, 0.0)
