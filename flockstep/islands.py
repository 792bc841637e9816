"""``place``: which island this process is on, and which of its members it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from flockstep.joining import current_seat


@dataclass(frozen=True)
class Place:
    """Where a process is: which member of which island, as ``fs.place()`` gives it.

    Args:
        island: Number of this process's island, from 0: what ``fs.rank()`` is.
        islands: How many islands there are: what ``fs.size()`` is.
        column: Which member of its island it is, from 0.
        columns: How many members an island has; 1 where a node is one process.

    Example:
        here = fs.place()
        sampler = torch.utils.data.DistributedSampler(range(100), num_replicas=here.processes, rank=here.process)
    """

    island: int
    islands: int
    column: int
    columns: int

    @property
    def process(self) -> int:
        """This process's number among all of all islands."""
        return self.island * self.columns + self.column

    @property
    def processes(self) -> int:
        """How many processes there are on all islands."""
        return self.islands * self.columns

    def mesh(self, device: str | None = None) -> Any:
        """This island's mesh, of one dimension: for ``fully_shard(model, mesh=...)``, or ``join(..., island=...)``.

        Makes the default group of torch.distributed, of all processes, unless there is one.

        Args:
            device: "cpu" or "cuda". None: "cuda" where there is a GPU.
        """
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
        if not dist.is_initialized():
            current_seat().start_group("gloo" if kind == "cpu" else f"cpu:gloo,{kind}:nccl")
        if dist.get_world_size() != self.processes:
            raise ValueError(
                f"there are {self.processes} processes here, but the default group of torch.distributed has "
                f"{dist.get_world_size()}"
            )
        from torch.distributed.device_mesh import init_device_mesh

        names = ("island", "column")
        return init_device_mesh(kind, (self.islands, self.columns), mesh_dim_names=names)["column"]


def place() -> Place:
    """Which island this process is on and which of its members it is, as far as whoever started it said.

    By ``flockstep run --islands 2x8``, ``fs.launch(..., islands="2x8")``, or the variable FLOCKSTEP_ISLANDS under
    torchrun, srun and mpirun. Without any of these, every process is an island of its own; inside a ``join`` it is what
    the model says.

    Example:
        torch.manual_seed(fs.place().process)  # data of its own for every process
    """
    seat = current_seat()
    return Place(seat.rank, seat.size, seat.column, seat.columns)
