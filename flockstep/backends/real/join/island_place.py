"""The islands of a world: every process says who is on its own, in the store that all have.

They are numbered by their lowest process. The c-th members of all islands then are a flock of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from flockstep.backends.real.collective import c10d
from flockstep.errors import Deadlock, Mismatch


@dataclass
class Processes:
    """All processes of a world, and which of them this one is."""

    store: c10d.Store
    rank: int
    size: int
    timeout: float
    columns: int = 1
    """How many processes each island has, if whoever started them said so; they then are in order."""
    joins: int = 0
    """How many islands have been asked for: the k-th of one process belongs with the k-th of every other."""

    def islands(self, ranks: Sequence[int]) -> list[tuple[int, ...]]:
        """The islands of all processes, where this one's has these; Mismatch where they make no sense together."""
        section, self.joins = c10d.PrefixStore(f"islands/{self.joins}", self.store.clone()), self.joins + 1
        section.set(str(self.rank), json.dumps(list(ranks)))
        everyone = [str(rank) for rank in range(self.size)]
        try:
            section.wait(everyone, timedelta(seconds=self.timeout))
        except RuntimeError:
            missing = [name for name in everyone if not section.check([name])]
            raise Deadlock(
                f"process {self.rank} waited {self.timeout:g} s to hear which island the others are on: nothing from "
                f"{', '.join(missing)}",
                rank=self.rank,
            ) from None
        said = {rank: tuple(json.loads(section.get(str(rank)))) for rank in range(self.size)}
        return _checked(said)

    def check_declared(self, ranks: Sequence[int]) -> None:
        """ValueError where an island is another than whoever started these processes said."""
        first = self.rank - self.rank % self.columns
        declared = tuple(range(first, first + self.columns))
        if self.columns > 1 and tuple(ranks) != declared:
            raise ValueError(
                f"these processes were started as {self.size // self.columns} islands of {self.columns}, so that of "
                f"process {self.rank} is {list(declared)}, but the model is trained by {list(ranks)}\n"
                "  take fs.place().mesh() for what is inside"
            )

    def start_group(self, backend: str) -> None:
        """Make the default group of torch.distributed, of all these processes."""
        section = c10d.PrefixStore("default group", self.store.clone())
        limit = timedelta(seconds=self.timeout)
        dist.init_process_group(backend, store=section, rank=self.rank, world_size=self.size, timeout=limit)


def _checked(said: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    for rank, ranks in said.items():
        if rank not in ranks or any(said.get(other) != ranks for other in ranks):
            raise Mismatch(f"process {rank} says that its island are the processes {list(ranks)}, and they disagree")
    islands = sorted(set(said.values()), key=min)
    sizes = {len(ranks) for ranks in islands}
    if len(sizes) > 1:
        raise Mismatch(
            f"islands must have as many processes each, these have {', '.join(str(len(ranks)) for ranks in islands)}: "
            "the c-th of one goes with the c-th of every other"
        )
    return islands
