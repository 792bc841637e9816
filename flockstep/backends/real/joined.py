"""The user's loop on real nodes: alone, under torchrun, or in a process or thread that ``launch`` started."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import nn

from flockstep.backends.loop.driver import Driver
from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.real import c10d
from flockstep.backends.real.fabric import Fabric
from flockstep.backends.real.node import RealNode
from flockstep.backends.real.processes import ProcessFabric
from flockstep.backends.real.threads import Hub, ThreadFabric
from flockstep.errors import located

_TIMEOUT = 300.0


class RealJoinedNode(JoinedNode, RealNode):
    """A real node in the user's loop. What happens between two steps is the user's computing."""

    def __init__(self, place: RealPlace, model: nn.Module, optimizer: torch.optim.Optimizer, flat: FlatModel) -> None:
        RealNode.__init__(self, place.make_fabric(), place.rank, place.size, place.seed)
        self.rows = []
        self.model, self.optimizer, self.flat, self.params = model, optimizer, flat, flat.vector
        self.driver = Driver(flat, lambda block: block.call())
        self._computing_since = time.perf_counter()

    def stop_computing(self) -> None:
        self.tally.computing += time.perf_counter() - self._computing_since

    def start_computing(self) -> None:
        self._computing_since = time.perf_counter()
        self.tally.seconds = self.now

    def fail(self, error: Exception) -> None:
        """Let nobody here wait any longer."""
        self._fabric.fail(located(error, self.rank, self.now))


class RealPlace:
    """A real seat. Every join has a fabric of its own, so that one after another never mix."""

    def __init__(self, rank: int, size: int, seed: int, make_fabric: Callable[[], Fabric]) -> None:
        self.rank, self.size, self.seed, self.make_fabric = rank, size, seed, make_fabric
        self.last: RealJoinedNode | None = None
        """The node of the newest join here."""

    def seat(self, model: nn.Module, optimizer: torch.optim.Optimizer, flat: FlatModel) -> JoinedNode:
        """A node that blocks where its strategy awaits."""
        self.last = RealJoinedNode(self, model, optimizer, flat)
        return self.last

    def leave(self, node: JoinedNode) -> None:
        """Wait for background work, and for everyone."""
        if isinstance(node, RealJoinedNode):
            node.finish()

    def fail(self, node: JoinedNode, error: BaseException) -> None:
        """End whatever waits here."""
        if isinstance(error, Exception) and isinstance(node, RealJoinedNode):
            node.fail(error)


def alone() -> RealPlace:
    """A run of one."""
    return RealPlace(0, 1, 0, lambda: ThreadFabric(Hub(1, _TIMEOUT), 0))


def started_by_torchrun() -> RealPlace | None:
    """The seat that torchrun, or anything that sets its variables, gave this process; None without one."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    return _torchrun_place()


@lru_cache(maxsize=1)
def _torchrun_place() -> RealPlace:
    store, rank, size = torchrun_store()
    return RealPlace(rank, size, 0, process_fabrics(store, rank, size, _TIMEOUT))


@lru_cache(maxsize=1)
def torchrun_store() -> tuple[c10d.Store, int, int]:
    """The store that torchrun's processes share, this one's rank, and how many they are."""
    store, rank, size = next(iter(c10d.rendezvous("env://")))
    # A restarted group must not read what the one before it wrote.
    return c10d.PrefixStore(f"flockstep/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store), rank, size


def process_fabrics(store: c10d.Store, rank: int, size: int, timeout: float) -> Callable[[], Fabric]:
    """A new fabric at each call; the k-th of one process belongs with the k-th of every other."""
    joins = itertools.count()
    return lambda: ProcessFabric(store, rank, size, timeout, section=f"join/{next(joins)}")
