"""The user's loop on real nodes: alone, among processes that others started, or where ``launch`` started it."""

from __future__ import annotations

import itertools
import logging
import os
import time
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from flockstep import units
from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.node import JoinedNode
from flockstep.backends.real.collective import c10d
from flockstep.backends.real.collective.processes import ProcessFabric
from flockstep.backends.real.collective.rendezvous import Rendezvous
from flockstep.backends.real.collective.threads import Hub, ThreadFabric
from flockstep.backends.real.fabric import Fabric, MakeFabric
from flockstep.backends.real.join.admission import Admission
from flockstep.backends.real.join.elastic_door import ElasticDoor
from flockstep.backends.real.join.island_place import Processes
from flockstep.backends.real.join.joined_node import RealJoinedNode
from flockstep.backends.real.launch import cluster_environment
from flockstep.backends.real.launch.cluster_environment import World
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.backends.real.recording import Recording
from flockstep.backends.real.rounds.elastic_fabric import ElasticFabric
from flockstep.elastic import Elastic
from flockstep.errors import FlockstepError

_TIMEOUT = 300.0
_log = logging.getLogger("flockstep")


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


class RealPlace:
    """A real seat. Every join has a fabric of its own, so that one after another never mix."""

    def __init__(
        self,
        rank: int,
        size: int,
        seed: int,
        make_fabric: MakeFabric,
        keeping: Recording | None = None,
        elastic: Elastic | None = None,
        processes: Processes | None = None,
        column: int = 0,
        columns: int = 1,
        home: RealPlace | None = None,
    ) -> None:
        self.rank, self.size, self.seed, self.make_fabric = rank, size, seed, make_fabric
        self.column, self.columns = column, columns
        self._processes, self._home = processes, home
        self.elastic = elastic
        """What its joins do about deaths, unless they say so themselves."""
        self.keeping = Recording.from_environment() if keeping is None else keeping
        self.last: RealJoinedNode | None = None
        """The node of the newest join here."""

    def on_island(self, ranks: tuple[int, ...]) -> RealPlace:
        """A seat of its own for every join of an island."""
        world = self._processes
        if world is None:
            if len(ranks) == 1:
                return self
            raise FlockstepError(
                f"the processes {list(ranks)} are to be one island, but this one does not know where they meet\n"
                "  start them by flockstep run, torchrun, srun or mpirun"
            )
        world.check_declared(ranks)
        islands = world.islands(ranks)
        if len(ranks) == 1:
            return self
        number, column = islands.index(ranks), ranks.index(world.rank)
        if len(islands) == 1:
            if column == 0 and world.columns == 1:
                _log.warning("all %d processes are one island: nothing is exchanged with anybody", world.size)
            make = alone().make_fabric
        else:
            store = c10d.PrefixStore(f"columns/{world.joins}/{column}", world.store)
            make = process_fabrics(store, number, len(islands), world.timeout)
        # Who looks on sees nodes, and the first member of an island speaks for it.
        keeping = self.keeping if column == 0 else Recording()
        return RealPlace(
            number, len(islands), self.seed, make, keeping, self.elastic, world, column, len(ranks), home=self
        )

    def start_group(self, backend: str) -> None:
        """Make the default group of torch.distributed, of all processes that are here."""
        if self._processes is None:
            dist.init_process_group(backend, store=c10d.HashStore(), rank=0, world_size=1)
        else:
            self._processes.start_group(backend)

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
        """A node that blocks where its strategy awaits."""
        self.last = RealJoinedNode(self, model, optimizer, flat, one_sided, strategy, elastic)
        if self._home is not None:
            self._home.last = self.last
        return self.last

    def admit(self, node: JoinedNode, strategy: str, checkpoints: Path | None) -> bool:
        """One-sided runs over a network are entered one by one, and so are elastic ones that are under way."""
        fabric = self.last.fabric if self.last else None
        if self.last is not None and self.last.part is not None:
            ElasticDoor(self.last, self.last.part, strategy, checkpoints).come_in()
            return True
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
            if type(node.fabric) in (MailFabric, ElasticFabric):
                # To the others it has died: whoever waits for it to leave must not wait for ever.
                node.fabric.close()


def alone() -> RealPlace:
    """A run of one."""
    return RealPlace(0, 1, 0, lambda one_sided, elastic: ThreadFabric(Hub(1, _TIMEOUT), 0))


def started_by_others() -> RealPlace | None:
    """The seat that torchrun, srun, mpirun or a group of torch.distributed gave this process; None without one."""
    world = cluster_environment.find()
    return None if world is None or world.lonely else _seat_in(world)


@lru_cache(maxsize=1)
def _seat_in(world: World) -> RealPlace:
    columns = cluster_environment.columns_of(world.size)
    return among(Processes(store_of(world), world.rank, world.size, timeout(), columns))


def among(
    world: Processes, *, seed: int = 0, keeping: Recording | None = None, elastic: Elastic | None = None
) -> RealPlace:
    """This process's seat among others: a node of its own, or on an island, if these were started as such."""
    rank, column = divmod(world.rank, world.columns)
    make = process_fabrics(world.store, world.rank, world.size, world.timeout) if world.columns == 1 else _no_island
    size = world.size // world.columns
    return RealPlace(rank, size, seed, make, keeping, elastic, world, column, world.columns)


def _no_island(one_sided: bool, elastic: Elastic | None) -> Fabric:
    raise FlockstepError(
        "these processes were started as islands, but this model is no island's\n"
        "  shard it: fully_shard(model, mesh=fs.place().mesh()); or for DDP and replicas say join(..., island=mesh)"
    )


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

    def make(one_sided: bool, elastic: Elastic | None) -> Fabric:
        section = f"join/{next(joins)}"
        if not one_sided and elastic is None:
            return ProcessFabric(store, rank, size, timeout, section=section)
        meeting = Rendezvous(store, size, section)
        again = meeting.comes_again(rank)
        house = partial(meeting.open_endpoint, rank, timeout)
        if elastic is not None and not one_sided:
            return ElasticFabric(rank, size, timeout, house, elastic, newcomer=again, publish_leaving=meeting.publish)
        return MailFabric(rank, size, timeout, house, newcomer=again, publish_leaving=meeting.publish)

    return make
