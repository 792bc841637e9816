"""Clips: gradient in, tamer gradient out.

A gradient whose norm is not finite is refused by returning None: the node skips that step and counts it.
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
        length, initial_length = node.step_lengths(g)
        if callable(self.gamma):
            return scaled_to(self.gamma(node.step_count - 1), g, length, node)
        return scaled_to(self.gamma, g, initial_length, node)


def scaled_to(cap: float, g: Tensor, length: float, node: Node) -> Tensor | None:
    """``g`` scaled by min(1, cap / length), counted when it was; None where the length is not finite."""
    if not math.isfinite(length):
        return None
    if length <= cap:
        return g
    node.count("clipped")
    return g * (cap / length)
