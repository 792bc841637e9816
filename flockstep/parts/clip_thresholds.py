"""A threshold that nothing reaches: a clip that never clips is a setting without effect, and is told of.

The report has "clipped": 0 from the first look on. After 100 looks without a clip, node 0 says so in the log, once. On
a GPU all is added up there: the host waits for one number, at the 100th look.
"""

from __future__ import annotations

import logging
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from flockstep.flock import Flock
from flockstep.node import Node

_LOOKS = 100
_log = logging.getLogger("flockstep")


class Threshold(NamedTuple):
    """Whose argument it is, and what is held against it: ``Threshold(clip, "max_norm", "gradients")``."""

    owner: object
    argument: str
    of: str

    def __str__(self) -> str:
        value = getattr(self.owner, self.argument)
        return f"{type(self.owner).__name__}.{self.argument} = {'a function' if callable(value) else value}"


class _Watch:
    """What one threshold has seen on one node."""

    __slots__ = ("clipped", "longest", "looks_left")

    def __init__(self, looks: int) -> None:
        self.looks_left = looks
        self.clipped: bool | Tensor = False
        self.longest: float | Tensor = 0.0


# Clips are values without state, and the same one serves many nodes: what a node has seen goes with the node.
_watches: WeakKeyDictionary[Node, dict[tuple[type, str], _Watch]] = WeakKeyDictionary()


def looked(node: Node, threshold: Threshold, length: float | Tensor, over: bool | Tensor) -> None:
    """Something of this length was held against a threshold, and was over it or not."""
    watch = _watch_of(node, threshold)
    if watch.looks_left == 0:
        return
    watch.looks_left -= 1
    if isinstance(length, Tensor):
        # Of a flock, node 0 of the first run.
        length, over = length.detach().reshape(-1)[0].nan_to_num(0.0, 0.0, 0.0), torch.as_tensor(over).reshape(-1)[0]
        longest = watch.longest if isinstance(watch.longest, Tensor) else length
        watch.longest = torch.maximum(longest, length)
    else:
        watch.longest = max(float(watch.longest), length)
    watch.clipped = watch.clipped | over
    if watch.looks_left == 0 and not bool(watch.clipped):
        _log.warning(
            "%s clipped none of the first %d %s: the longest was %.4g, and only what is longer is clipped",
            threshold,
            _LOOKS,
            threshold.of,
            float(watch.longest),
        )


def _watch_of(node: Node, threshold: Threshold) -> _Watch:
    key = type(threshold.owner), threshold.argument
    of_node = _watches.get(node)
    if of_node is None:
        of_node = _watches[node] = {}
    watch = of_node.get(key)
    if watch is None:
        # A flock speaks for all its nodes, none of which it is.
        watch = of_node[key] = _Watch(_LOOKS if isinstance(node, Flock) or node.rank == node.column == 0 else 0)
        node.count("clipped", 0)
    return watch
