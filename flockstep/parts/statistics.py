"""A model's two parts: what trains, and behind it the float buffers, batch-norm statistics above all.

Statistics are no sum of steps, and a variance must stay one: momentum, or changes that come late, could carry it below
zero. So a strategy that adds changes up adds those of what trains, and takes statistics as somebody has them, or the
mean of some. Both parts are views: what is written to them is written to the vector.
"""

from __future__ import annotations

from torch import Tensor

from flockstep.node import Node


def trained(v: Tensor, node: Node, begin: int = 0) -> Tensor:
    """What trains of a vector like the model, or like the part of it that begins there."""
    return v[: max(node.trained - begin, 0)]


def statistics(v: Tensor, node: Node, begin: int = 0) -> Tensor:
    """What does not."""
    return v[max(node.trained - begin, 0) :]
