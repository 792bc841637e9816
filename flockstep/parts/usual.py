"""A cap nobody has to choose: half as much again as steps usually are.

    cap_t = 1.5 m_t,    m <- m + (min(length_t, cap_t) - m) / s

m is the mean of the first ten steps; from then on s is 50 where a step is shorter than usual and 200 where it is
longer. What was cut counts as what was left of it, so that the cap grows by a quarter of a percent a step at
most: steps that explode are stopped, steps that have grown for good are followed. Steps of no length, or of none that
is finite, do not count, and the first that does is not cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flockstep.node import Node
from flockstep.vector import norm

_ABOVE = 1.5
_FIRST = 10
_DOWN, _UP = 50.0, 200.0


class Usual:
    """How long the steps of a node usually are."""

    def __init__(self, node: Node) -> None:
        like = norm(node.params)
        # Shown from the beginning, and where nothing is ever cut.
        node.count("clipped", 0)
        self._mean = node.keep("usual length", torch.zeros_like(like))
        self._seen = node.keep("lengths seen", torch.zeros_like(like))

    def cap(self, length: Tensor) -> Tensor:
        """What a step of this length is cut to if it is longer; the step then counts."""
        counts = length.isfinite() & (length > 0)
        cap = torch.where(self._seen > 0, _ABOVE * self._mean, length)
        self._seen.add_(counts).clamp_(max=_FIRST + 1)
        news = torch.where(counts, torch.minimum(length, cap) - self._mean, 0.0)
        over = torch.where(self._seen <= _FIRST, self._seen.clamp(min=1), torch.where(news > 0, _UP, _DOWN))
        self._mean.add_(news / over)
        return cap
