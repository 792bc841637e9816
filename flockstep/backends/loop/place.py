"""Where a user's loop runs: who it is among how many, and how it reaches the others.

Set by whoever starts the loop (a launched process, a thread, a virtual node); found by ``join``.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.node import JoinedNode
from flockstep.elastic import Elastic


class Place(Protocol):
    """One seat in a run."""

    rank: int
    size: int
    seed: int
    column: int
    columns: int
    """Which process of how many of an island this is."""
    elastic: Elastic | None
    """What joins here do about deaths, unless they say so themselves."""

    @property
    def last(self) -> JoinedNode | None:
        """The node of the newest join here."""

    def on_island(self, ranks: tuple[int, ...]) -> Place:
        """The seat of this process's island, which these processes of the world share: as one node, each of them with
        its part of the model."""

    def start_group(self, backend: str) -> None:
        """Make the default group of torch.distributed, of all processes that are here."""

    def seat(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        flat: FlatModel,
        *,
        one_sided: bool,
        strategy: str,
        elastic: Elastic | None,
    ) -> JoinedNode:
        """A node for this seat, with a driver that performs what its backend's verbs await; ``strategy`` in words."""

    def admit(self, node: JoinedNode, strategy: str, checkpoints: Path | None) -> bool:
        """Let a node of a one-sided run come in by itself, with its own checkpoint; False where nodes come together."""

    def leave(self, node: JoinedNode) -> None:
        """The loop ended well: wait for background work, and leave together."""

    def fail(self, node: JoinedNode, error: BaseException) -> None:
        """The loop raised: let nobody wait for this node."""


class _Here(threading.local):
    place: Place | None = None


_here = _Here()


def current() -> Place | None:
    """The place this code runs in, if somebody has set one."""
    return _here.place


def set_current(place: Place | None) -> Any:
    """Say where the code of this thread runs from now on; gives back what was said before."""
    before, _here.place = _here.place, place
    return before
