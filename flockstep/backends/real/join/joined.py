"""The user's loop on real nodes: alone, among processes that others started, or where ``launch`` started it."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import nn

from flockstep import units
from flockstep.backends.loop.driver import Driver
from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.real.collective import c10d
from flockstep.backends.real.collective.processes import ProcessFabric
from flockstep.backends.real.collective.rendezvous import Rendezvous
from flockstep.backends.real.collective.threads import Hub, ThreadFabric
from flockstep.backends.real.fabric import Fabric, MakeFabric
from flockstep.backends.real.join.admission import Admission
from flockstep.backends.real.launch import cluster_environment
from flockstep.backends.real.launch.cluster_environment import World
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.backends.real.node import RealNode
from flockstep.backends.real.recording import Recording
from flockstep.errors import located

_TIMEOUT = 300.0


def timeout() -> float:
    """How long any wait may last in a process that something else has started: FLOCKSTEP_TIMEOUT, "30" or "5 min"."""
    text: str | float = os.environ.get("FLOCKSTEP_TIMEOUT") or _TIMEOUT
    # A plain number is seconds; whatever is no number is for the units to read, or to refuse.
    with suppress(ValueError):
        text = float(text)
    seconds = units.seconds(text, "FLOCKSTEP_TIMEOUT")
    if seconds == 0:
        raise ValueError(f"FLOCKSTEP_TIMEOUT must be positive, got {text!r}")
    return seconds


class RealJoinedNode(JoinedNode, RealNode):
    """A real node in the user's loop. What happens between two steps is the user's computing."""

    def __init__(
        self,
        place: RealPlace,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        flat: FlatModel,
        one_sided: bool,
        strategy: str,
    ) -> None:
        fabric = place.make_fabric(one_sided)
        RealNode.__init__(self, fabric, place.rank, place.size, place.seed, place.keeping, strategy)
        self.one_sided = one_sided
        self.onlookers = () if self.journal is None else (self.journal.row,)
        self.model, self.optimizer, self.flat, self.params = model, optimizer, flat, flat.vector
        self.driver = Driver(flat, lambda block: block.call(), alone=place.size == 1)

    @property
    def address(self) -> str:
        """Where this node's mailbox is."""
        return self.fabric.mailbox().members.me.address if isinstance(self.fabric, MailFabric) else ""

    def stop_computing(self) -> None:
        self.stopwatch.turn(None)

    def start_computing(self) -> None:
        self.stopwatch.turn("computing")
        self.tally.seconds = self.now
        self.glance()

    def fail(self, error: Exception) -> None:
        """Let nobody here wait any longer."""
        self.fabric.fail(located(error, self.rank, self.now))


class RealPlace:
    """A real seat. Every join has a fabric of its own, so that one after another never mix."""

    def __init__(
        self, rank: int, size: int, seed: int, make_fabric: MakeFabric, keeping: Recording | None = None
    ) -> None:
        self.rank, self.size, self.seed, self.make_fabric = rank, size, seed, make_fabric
        self.keeping = Recording.from_environment() if keeping is None else keeping
        self.last: RealJoinedNode | None = None
        """The node of the newest join here."""

    def seat(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, flat: FlatModel, *, one_sided: bool, strategy: str
    ) -> JoinedNode:
        """A node that blocks where its strategy awaits."""
        self.last = RealJoinedNode(self, model, optimizer, flat, one_sided, strategy)
        return self.last

    def admit(self, node: JoinedNode, strategy: str, checkpoints: Path | None) -> bool:
        """One-sided runs over a network are entered one by one."""
        fabric = self.last.fabric if self.last else None
        if type(fabric) is not MailFabric:
            return False
        door = Admission(node, strategy, fabric, checkpoints)
        node.driver.call(door.come_in(fabric.timeout, time.sleep))
        if fabric.newcomer:
            # Later than any before it; whoever let it in would have told it of one.
            node.incarnation = fabric.mailbox().members.me.incarnation // 10**6
        return True

    def leave(self, node: JoinedNode) -> None:
        """Wait for background work, and for everyone."""
        if isinstance(node, RealJoinedNode):
            node.finish()

    def fail(self, node: JoinedNode, error: BaseException) -> None:
        """End whatever waits here."""
        if isinstance(node, RealJoinedNode):
            if isinstance(error, Exception):
                node.fail(error)
            node.give_up(error)
            if type(node.fabric) is MailFabric:
                # To the others it has died: whoever waits for it to leave must not wait for ever.
                node.fabric.close()


def alone() -> RealPlace:
    """A run of one."""
    return RealPlace(0, 1, 0, lambda one_sided: ThreadFabric(Hub(1, _TIMEOUT), 0))


def started_by_others() -> RealPlace | None:
    """The seat that torchrun, srun, mpirun or a group of torch.distributed gave this process; None without one."""
    world = cluster_environment.find()
    return None if world is None or world.lonely else _seat_in(world)


@lru_cache(maxsize=1)
def _seat_in(world: World) -> RealPlace:
    return RealPlace(world.rank, world.size, 0, process_fabrics(store_of(world), world.rank, world.size, timeout()))


@lru_cache(maxsize=1)
def store_of(world: World) -> c10d.Store:
    """The store that the processes of a world share."""
    section = world.job or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if path := os.environ.get("FLOCKSTEP_STORE"):
        # Nodes of one machine: a file cannot die, and needs nobody to hold it.
        store = c10d.FileStore(path, -1)
    elif world.store is not None:
        store = world.store
    elif world.by == "torchrun":
        store, _, _ = next(iter(c10d.rendezvous("env://")))
    else:
        store = _met(world)
    # A restarted group must not read what the one before it wrote, nor one job what another did at the same port.
    return c10d.PrefixStore(f"flockstep/{section}", store)


def _met(world: World) -> c10d.Store:
    host, port = world.meeting()
    address = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        limit = timedelta(seconds=timeout())
        store, _, _ = next(iter(c10d.rendezvous(address, world.rank, world.size, timeout=limit)))
    except RuntimeError as error:
        error.add_note(
            f"{world}, which meet at {host}:{port}: MASTER_ADDR and MASTER_PORT, the same for all, change that"
        )
        raise
    return store


def process_fabrics(store: c10d.Store, rank: int, size: int, timeout: float) -> MakeFabric:
    """A new fabric at each call; the k-th of one process belongs with the k-th of every other."""
    joins = itertools.count()

    def make(one_sided: bool) -> Fabric:
        section = f"join/{next(joins)}"
        if not one_sided:
            return ProcessFabric(store, rank, size, timeout, section=section)
        meeting = Rendezvous(store, size, section)
        again = meeting.comes_again(rank)
        house = partial(meeting.open_endpoint, rank, timeout)
        return MailFabric(rank, size, timeout, house, newcomer=again, publish_leaving=meeting.publish)

    return make
