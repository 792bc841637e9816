"""The part of a model that one member of an island answers for, as one vector.

The vector is a copy, brought up to date by ``pull`` and ``push``: FSDP gathers whole parameters from memory of its own,
and a piece of a replicated parameter is nothing that an optimizer could be given. What a strategy wrote to a piece of
something replicated, a parameter, its gradient, a buffer, the other members are told, since each has all of it.
Float buffers are each member's own between two exchanges; in the vector stands their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from flockstep.backends.loop.flat import FlatModel
from flockstep.backends.loop.island import Island, is_sharded, local, range_of
from flockstep.backends.loop.serialization import plain_tensors, write
from flockstep.errors import Mismatch
from flockstep.vector import Layout, is_finite


class IslandModel(FlatModel):
    """One column of a model, its vector, and its gradients as a vector."""

    def __init__(self, model: nn.Module, island: Island, *, unseen: bool = False, watched: bool = False) -> None:
        self._island, self._watched = island, watched
        self._sharding = [module for module in model.modules() if _shards(module)]
        self._given = -1
        """Which version of the gradients' vector the strategy was given."""
        self._fine: Tensor | None = None
        """On a GPU, whether that was finite."""
        super().__init__(model, unseen=unseen)

    # In the words of FlatModel ----------------------------------------------------------------------------------------

    def _piece(self, tensor: Tensor) -> Tensor:
        real = _real(local(tensor))
        return real if is_sharded(tensor) else self._island.piece(real)

    def _seen(self, vector: Tensor) -> Iterator[Tensor]:
        yield from self._layout.views(vector)[: len(self.parameters)]

    def _begin(self) -> None:
        self.mirrored = True
        island, buffers = self._island, self.statistics.buffers
        island.agree(self.describe())
        self._sharded = [i for i, (_, parameter) in enumerate(self.parameters) if is_sharded(parameter)]
        self._replicated = [i for i, (_, parameter) in enumerate(self.parameters) if not is_sharded(parameter)]
        self._shapes = [_real(local(self.parameters[i][1])).shape for i in self._replicated]
        """Of what every member has whole."""
        self._buffer_shapes = [_real(buffer.now).shape for buffer in buffers]
        # Replicas, and buffers of shards: members need not have begun alike.
        self._take_over([*self._whole_parameters(), *(buffer.now for buffer in buffers), *self._whole_rest()])
        kept = Layout(tuple(b.name for b in buffers), tuple(self._buffer_shapes), self.vector.dtype)
        self._buffers = self.vector.new_zeros(kept.size if buffers else 0)
        """What stands for the buffers: of all columns, whole."""
        self.statistics.lie_in(self._buffers, kept.views if buffers else lambda part: [])
        self.pull(parameters_only=True)

    def _take_over(self, tensors: Sequence[Tensor]) -> None:
        """All members have what column 0 has."""
        for plain in chain.from_iterable(plain_tensors(local(tensor)) for tensor in tensors):
            write(plain, self._island.first(plain))

    def _whole_parameters(self) -> list[Tensor]:
        return [self.parameters[i][1] for i in self._replicated]

    def _whole_rest(self) -> list[Tensor]:
        return [tensor for tensor in self.rest.values() if not is_sharded(tensor)]

    def describe(self) -> list[str]:
        """As of a whole model, and how it is cut."""
        shards = {name: tensor for name, tensor in chain(self.parameters, self._frozen.items()) if is_sharded(tensor)}
        how = [f"{name} is sharded: {tensor.placements}" for name, tensor in shards.items()]  # type: ignore[attr-defined]
        return [f"island of {self._island.columns}", *super().describe(), *how]

    def shared(self) -> list[Tensor]:
        """Column 0 takes over what all members have whole, and hands it on."""
        whole = [*self._whole_rest(), *self.statistics.bases] if self._island.column == 0 else []
        return [self.vector, *(local(tensor) for tensor in self.rest.values() if is_sharded(tensor)), *whole]

    def settle(self) -> None:
        """What ``shared`` gave was overwritten: bring all members' models up to date with it."""
        self._take_over([*self._whole_rest(), *self.statistics.bases])
        self._write(settling=True)

    def begins(self) -> list[int]:
        """As columns cut: rows of what is sharded, numbers of what is not."""
        averaged = [*(p for _, p in self.parameters), *(buffer.now for buffer in self.statistics.buffers)]
        return [self._begin_of(tensor) for tensor in averaged]

    def _begin_of(self, tensor: Tensor) -> int:
        each = 2 if tensor.is_complex() else 1
        return each * range_of(tensor)[0] if is_sharded(tensor) else self._island.begin_of(each * tensor.numel())

    # Between vector and model -----------------------------------------------------------------------------------------

    def pull(self, *, parameters_only: bool = False) -> None:
        """Bring the vector up to date with the model."""
        overwritten = self.vector._version != self._written
        for name, parameter in self.parameters:
            self._check_kind(name, parameter)
        torch._foreach_copy_(self._views, [self._piece(parameter) for _, parameter in self.parameters])
        if not parameters_only and self.statistics.buffers:
            self._pull_buffers(overwritten=overwritten)
        self._written = self.vector._version

    def _pull_buffers(self, *, overwritten: bool) -> None:
        statistics, island = self.statistics, self._island
        statistics.pull(overwritten=overwritten)
        # Without a look at whether any moves: on a GPU nobody waits here.
        self._buffers.copy_(island.total(self._buffers) / island.columns)
        pieces = [island.piece(slot) for slot in statistics.slots]
        torch._foreach_copy_(self._layout.views(self.vector)[len(self.parameters) :], pieces)

    def _agree_on_what_moves(self) -> None:
        """Of a buffer that only one member has seen to move, all take the mean."""
        buffers = self.statistics.buffers
        if buffers and not all(buffer.awake for buffer in buffers):
            seen = self._island.total(torch.tensor([float(buffer.awake) for buffer in buffers]))
            for buffer, awake in zip(buffers, seen.tolist(), strict=True):
                buffer.awake = awake > 0

    def push(self) -> None:
        """Bring the model up to date with the vector, if a strategy has written to it."""
        # All members run the same program: what one has written to, so have the others.
        changed = self.vector._version != self._written
        if self._watched:
            self._agree_on(changed)
        if changed:
            self._write()

    def _agree_on(self, changed: bool) -> None:
        """Mismatch where it is not so, in a program that is not ours."""
        count = int(self._island.total(torch.tensor(float(changed))))
        if 0 < count < self._island.columns:
            raise Mismatch(
                f"{count} of the {self._island.columns} processes of this island changed the model at this step, and "
                "the others did not: the strategy decides by what each sees of it\n"
                "  decide by node.length(v), node.total(t) or node.agreed(t), which are the same on all"
            )

    def _write(self, *, settling: bool = False) -> None:
        parts = self._layout.views(self.vector)
        if self._sharded:
            shards = [_real(local(self.parameters[i][1])) for i in self._sharded]
            torch._foreach_copy_(shards, [parts[i] for i in self._sharded])
        whole = self._whole(parts, buffers=True)
        for i, numbers in zip(self._replicated, whole, strict=False):
            _real(local(self.parameters[i][1].data)).copy_(numbers)
        for slot, numbers in zip(self.statistics.slots, whole[len(self._replicated) :], strict=True):
            slot.copy_(numbers)
        if settling:
            self.statistics.settle()
        else:
            self._agree_on_what_moves()
            self.statistics.push()
        for module in self._sharding:
            # Whoever was whole, after an evaluation, would go on with what it had.
            module.reshard()  # type: ignore[operator]
        self._written = self.vector._version

    def _whole(self, parts: Sequence[Tensor], *, buffers: bool = False) -> list[Tensor]:
        """What members have whole, from the pieces of all: replicated parameters, and buffers if asked for."""
        pieces, shapes = [parts[i] for i in self._replicated], list(self._shapes)
        if buffers:
            pieces += parts[len(self.parameters) :]
            shapes += self._buffer_shapes
        return self._island.whole(pieces, shapes)

    # Gradients --------------------------------------------------------------------------------------------------------

    def gradient(self, absent: frozenset[int] = frozenset()) -> Tensor:
        """The gradients of what this column has, as a vector like the model's."""
        for name, parameter in self.parameters:
            placed = (getattr(tensor, "placements", None) for tensor in (parameter, parameter.grad))
            if parameter.grad is not None and len(set(placed)) > 1:
                raise TypeError(
                    f"parameter {name} and its gradient are placed differently "
                    f"({parameter.placements} and {parameter.grad.placements}): nothing here puts that right"  # type: ignore[attr-defined]
                )
        return super().gradient(absent)

    def _packed(self, own: dict[str, Tensor]) -> Tensor:
        g = self._room()
        known = [(part, own.get(name)) for (name, _), part in zip(self.parameters, self._parts, strict=True)]
        torch._foreach_zero_([*(part for part, mine in known if mine is None), self.buffers(g)])
        present = [(part, self._piece(mine)) for part, mine in known if mine is not None]
        if present:
            torch._foreach_copy_([part for part, _ in present], [piece for _, piece in present])
        self._given, self._fine = g._version, None
        return g

    def guarded(self, g: Tensor, fine: Tensor | None) -> None:
        """What was done to the vector can be done to whole gradients, without a gather of pieces."""
        if g is self._shown and fine is not None:
            self._given, self._fine = g._version, fine

    def unseen_are_finite(self) -> bool:
        """Whether all members' are."""
        pieces = [self._piece(gradient) for gradient in self._own.values()]
        fine = all(is_finite(piece) for piece in pieces)
        return float(self._island.total(torch.tensor(float(not fine)))) == 0

    def set_gradient(self, g: Tensor | None, *, of_all: bool) -> None:
        """The members' pieces of it make whole gradients, where it has changed."""
        if g is not None and g is self._shown and g._version == self._given:
            if self._fine is not None:
                for own in [local(p.grad) for _, p in self.parameters if p.grad is not None]:
                    own.copy_(torch.where(self._fine, own, 0.0))
        else:
            super().set_gradient(g, of_all=of_all)
        self._own = {}

    def _copy_gradient(self, g: Tensor, *, of_all: bool) -> None:
        parts = list(self._seen(g))
        wanted, whole = self._wanted(parts, of_all=of_all), iter(self._whole(parts))
        for (_, parameter), part, is_wanted in zip(self.parameters, parts, wanted, strict=True):
            numbers = part if is_sharded(parameter) else next(whole)
            if is_wanted:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter.detach())
                _real(local(parameter.grad)).copy_(numbers)

    def _wanted(self, parts: Sequence[Tensor], *, of_all: bool) -> list[bool]:
        """Which parameters are to have a gradient: as in FlatModel, of the tensor as a whole."""
        has = [parameter.requires_grad and (of_all or parameter.grad is not None) for _, parameter in self.parameters]
        if all(has) or of_all:
            return has
        counts = self._island.total(torch.stack([part.count_nonzero() for part in parts]).float().cpu()).tolist()
        trains = [parameter.requires_grad for _, parameter in self.parameters]
        return [one or (can and count > 0) for one, can, count in zip(has, trains, counts, strict=True)]

    def parts_of(self, parameters: list[Tensor], g: Tensor) -> Tensor:
        """This column's part of some parameters."""
        wanted = {id(parameter) for parameter in parameters}
        pairs = zip(self.parameters, self._seen(g), strict=True)
        parts = [part.reshape(-1) for (_, tensor), part in pairs if id(tensor) in wanted]
        return torch.cat(parts) if parts else g.new_zeros(0)

    def not_finite(self, vector: Tensor) -> str | None:
        """The first tensor whose part here is not."""
        named = self._own.items() if vector.is_meta else zip(self._layout.names, self.views(vector), strict=True)
        return next((name for name, part in named if not is_finite(_real(local(part)))), None)

    # Another model ----------------------------------------------------------------------------------------------------

    def load(self, model: nn.Module, vector: Tensor) -> None:
        """Write a vector into another model of the same kind, sharded alike or whole. All members must."""
        named: dict[str, Any] = dict(model.named_parameters())
        parts = self._layout.views(vector)
        whole = self._whole(parts, buffers=True)
        rest = iter(whole)
        for (name, parameter), part in zip(self.parameters, parts, strict=False):
            numbers, target = part if is_sharded(parameter) else next(rest), named[name]
            if is_sharded(parameter) and not is_sharded(target):
                numbers = _gathered(parameter, numbers)
            _real(local(target)).copy_(numbers)
        self.statistics.load(dict(model.named_buffers()), whole[len(self._replicated) :])


def _gathered(like: Any, numbers: Tensor) -> Tensor:
    """A sharded tensor whole, of a parameter's shards with these numbers."""
    shard = torch.view_as_complex(numbers) if like.is_complex() else numbers
    kind: Any = type(like.detach())
    shards = kind.from_local(
        shard.to(like.dtype), like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )
    return _real(shards.full_tensor())


def _shards(module: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
