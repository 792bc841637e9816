"""An island from inside: processes that train one model in lockstep, and what they tell each other over a fast link.

To the flock an island is one node. Its members are columns. Every tensor of the model is cut into as many pieces as
there are columns, by ``fully_shard`` where the model is sharded and by us where each member has it whole; column c's
vector holds the c-th piece of each. So columns have the model among them, each number once. The c-th columns of all
islands are a flock of their own, over their part of it.

Everything here is called by all members at the same place of their program, in its main thread: it goes over the
group that the user trains with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flockstep.errors import Mismatch


def is_sharded(tensor: Tensor) -> bool:
    """Whether a process has only a part of it: a DTensor that is not replicated."""
    placements: Any = getattr(tensor, "placements", ())
    return any(not placement.is_replicate() for placement in placements)


def local(tensor: Tensor) -> Tensor:
    """What this process has of a tensor, in the memory where it lies."""
    # The public to_local() takes ten microseconds for each parameter, several times a step.
    inside: Tensor = getattr(tensor, "_local_tensor", tensor)
    return inside.detach()


def range_of(tensor: Any) -> tuple[int, int]:
    """Which of a sharded tensor's numbers this process has."""
    if [getattr(placement, "dim", None) for placement in tensor.placements] != [0]:
        raise NotImplementedError(
            f"a tensor is sharded as {tensor.placements}; islands of another size can take up what is cut along rows\n"
            "  resume with as many processes in each island as saved it"
        )
    rows, each = tensor.shape[0], tensor.numel() // max(tensor.shape[0], 1)
    length = -(-rows // tensor.device_mesh.size())
    begin = min(tensor.device_mesh.get_local_rank() * length, rows)
    return begin * each, min(begin + length, rows) * each


class Island:
    """One member's way to the others of its island."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.ranks: tuple[int, ...] = tuple(dist.get_process_group_ranks(group))
        """Its members in the world of all processes, by column."""
        self.columns, self.column = len(self.ranks), self.ranks.index(dist.get_rank())
        """How many they are, and which of them this one is."""
        self._devices = [torch.device(kind) for kind in _kinds_of_device(group)]

    def total(self, t: Tensor) -> Tensor:
        """The sum of what all members bring."""
        if self.columns == 1:
            return t
        summed = t.detach().to(self._device_for(t), copy=True)
        dist.all_reduce(summed, group=self._group)
        return summed.to(t.device)

    def first(self, t: Tensor) -> Tensor:
        """What column 0 brings."""
        if self.columns == 1:
            return t
        given = t.detach().to(self._device_for(t), copy=True).contiguous()
        dist.broadcast(given, src=self.ranks[0], group=self._group)
        return given.to(t.device)

    def piece(self, tensor: Tensor) -> Tensor:
        """This column's part of a tensor that every member has: a flat piece, perhaps of nothing."""
        flat = tensor.detach().reshape(-1)
        length = self._length(flat.numel())
        return flat[self.column * length : (self.column + 1) * length]

    def begin_of(self, numel: int) -> int:
        """At which of so many numbers this column's piece begins."""
        return min(self.column * self._length(numel), numel)

    def whole(self, pieces: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Tensors of these shapes, from the pieces of all columns: one exchange for all of them."""
        if self.columns == 1 or not pieces:
            return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        lengths = [self._length(shape.numel()) for shape in shapes]
        packed = pieces[0].new_zeros(sum(lengths))
        # The last columns may have less of a tensor than the others, or nothing.
        rooms = [room[: piece.numel()] for room, piece in zip(torch.split(packed, lengths), pieces, strict=True)]
        torch._foreach_copy_(rooms, [piece.reshape(-1) for piece in pieces])
        every = torch.split(self._gathered(packed), lengths, dim=1)
        return [part.reshape(-1)[: shape.numel()].view(shape) for part, shape in zip(every, shapes, strict=True)]

    def agree(self, lines: Sequence[str]) -> None:
        """Mismatch unless all members say the same."""
        if self.columns == 1:
            return
        text = torch.frombuffer(bytearray(json.dumps(list(lines)).encode()), dtype=torch.uint8)
        lengths = self._gathered(torch.tensor([text.numel()])).view(-1).tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: text.numel()] = text
        said = self._gathered(padded)
        everyones = [json.loads(said[k, :length].numpy().tobytes()) for k, length in enumerate(lengths)]
        for column, theirs in enumerate(everyones):
            if theirs != everyones[0]:
                pairs = zip(everyones[0], theirs, strict=False)
                a, b = next((pair for pair in pairs if pair[0] != pair[1]), (len(everyones[0]), len(theirs)))
                raise Mismatch(
                    f"processes {self.ranks[0]} and {self.ranks[column]} are of one island and do not train the same: "
                    f"the first has {a!r}, the other {b!r}"
                )

    def _gathered(self, t: Tensor) -> Tensor:
        """What everybody brings, all of one length: a row for each."""
        mine = t.to(self._device_for(t))
        every = mine.new_empty(self.columns, mine.numel())
        dist.all_gather(list(every), mine, group=self._group)
        return every.to(t.device)

    def _length(self, numel: int) -> int:
        return -(-numel // self.columns)

    def _device_for(self, t: Tensor) -> torch.device:
        """Where it must lie to travel: NCCL takes nothing that is on a CPU, where offloaded shards are."""
        return t.device if any(t.device.type == one.type for one in self._devices) else self._devices[0]


def _kinds_of_device(group: Any) -> list[str]:
    kinds = [device.type for device in getattr(group, "_device_types", ())]
    return kinds or ["cpu"]
