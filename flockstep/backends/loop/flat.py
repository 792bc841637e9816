"""The user's model as one vector: trainable parameters first, then float buffers such as batch-norm statistics.

Where parameters share a dtype they become views of the vector, and are never copied. Where they do not, the vector
holds them in the widest dtype and is kept in step by ``pull`` and ``push``. Complex numbers lie in it as pairs. Buffers
keep their own memory: what of them is in the vector, and why, is in buffers.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import reduce

import torch
from torch import Tensor, nn

from flockstep.backends.loop.buffers import Statistics
from flockstep.vector import Layout, is_finite


class FlatModel:
    """A model, its vector, and its gradients as a vector."""

    def __init__(self, model: nn.Module, *, unseen: bool = False) -> None:
        self.parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        """What trains, by name."""
        self._frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        self._kinds = {name: (p.shape, p.dtype, p.device) for name, p in self.parameters}
        self.statistics = Statistics(model)
        averaged = [*self.parameters, *((buffer.name, buffer.now) for buffer in self.statistics.buffers)]
        named = [(name, self._piece(tensor)) for name, tensor in averaged]
        kinds = [tensor.dtype for _, tensor in named]
        dtype = reduce(torch.promote_types, kinds)
        self.mirrored = any(kind != dtype for kind in kinds[: len(self.parameters)])
        names, shapes = zip(*((name, tensor.shape) for name, tensor in named), strict=True)
        self._layout = Layout(names, shapes, dtype)
        device = self.parameters[0][1].device
        # On a GPU nobody waits to hear whether gradients are finite: there one kernel decides for the whole vector.
        self.unseen = unseen and device.type == "cpu"
        """Whether gradients stay where they are, because the strategy steps with them as they are."""
        self._own: dict[str, Tensor] = {}
        self.vector = torch.zeros(self._layout.size, dtype=dtype, device=device)
        self._views = list(self._seen(self.vector))
        self._shown: Tensor | None = None
        self._parts: list[Tensor] = []
        self._held = 0
        """How many tensors lie in the memory of the gradients as long as nobody else has any of it."""
        self._written = -1
        self._begin()

    def _piece(self, tensor: Tensor) -> Tensor:
        """What of a tensor lies in this vector, as real numbers: all of it."""
        return _real(tensor)

    def _begin(self) -> None:
        """The vector takes the model's values, and where dtypes allow it the place of its memory."""
        self.statistics.lie_in(self.buffers(self.vector), self._cut_buffers)
        for (_, parameter), view in zip(self.parameters, self._views, strict=True):
            view.copy_(parameter.detach())
            if not self.mirrored:
                parameter.data = view

    @property
    def rest(self) -> dict[str, Tensor]:
        """What is not averaged: frozen parameters, and buffers of whole numbers or of this node's own."""
        return self._frozen | {buffer.name: buffer.now for buffer in self.statistics.others}

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The parameters that did not train when the loop joined."""
        return dict(self._frozen)

    def cut(self) -> list[tuple[str, int, int]]:
        """Where what is averaged lies in the vector: name, begin and length of each tensor, or of a column's piece."""
        lengths = (shape.numel() for shape in self._layout.shapes)
        return list(zip(self._layout.names, self._layout.starts, lengths, strict=True))

    def begins(self) -> list[int]:
        """At which of a tensor's numbers each of these pieces begins."""
        return [0] * len(self._layout.names)

    def holds(self, parameter: Tensor) -> bool:
        """Whether a parameter is in the vector."""
        return any(parameter is other for _, other in self.parameters)

    def shared(self) -> list[Tensor]:
        """All that a node takes over from another at the door, to be followed by ``settle``."""
        return [self.vector, *self.rest.values(), *self.statistics.bases]

    def settle(self) -> None:
        """What ``shared`` gave was overwritten: bring the model up to date with it."""
        self.statistics.settle()
        self.push()

    def buffers(self, vector: Tensor) -> Tensor:
        """The part of a vector that holds buffers: all that changes between two steps."""
        trained = len(self.parameters)
        starts = self._layout.starts
        return vector[starts[trained] if trained < len(starts) else vector.numel() :]

    def _cut_buffers(self, part: Tensor) -> list[Tensor]:
        """The buffers in the part of a vector that holds them."""
        trained = len(self.parameters)
        starts, shapes = self._layout.starts[trained:], self._layout.shapes[trained:]
        return [
            part[start - starts[0] : start - starts[0] + shape.numel()].view(shape)
            for start, shape in zip(starts, shapes, strict=True)
        ]

    def views(self, vector: Tensor) -> list[Tensor]:
        """The model's tensors in a vector like its own."""
        return self._layout.views(vector)

    def _seen(self, vector: Tensor) -> Iterator[Tensor]:
        """The trained part of a vector, each part as its parameter is: of its type, in its memory format."""
        for (_, parameter), start, shape in zip(
            self.parameters, self._layout.starts, self._layout.shapes, strict=False
        ):
            flat = vector[start : start + shape.numel()]
            if parameter.is_complex():
                yield torch.view_as_complex(flat.view(shape))
            elif parameter.is_contiguous() or not _is_dense(parameter):
                yield flat.view(shape)
            else:
                yield flat.as_strided(shape, parameter.stride(), flat.storage_offset())

    def describe(self) -> list[str]:
        """One line per tensor, for nodes to compare: name, shape, dtype, and the order of numbers if it is unusual."""
        averaged = [*self.parameters, *((buffer.name, buffer.now) for buffer in self.statistics.buffers)]
        lines = []
        for name, tensor in [*averaged, *self.rest.items()]:
            unusual = "" if tensor.is_contiguous() or not _is_dense(tensor) else f" strides {tensor.stride()}"
            lines.append(f"{name} {tuple(tensor.shape)} {tensor.dtype}{unusual}")
        return lines

    def pull(self, *, parameters_only: bool = False) -> None:
        """Bring the vector up to date with the model; a step of the optimizer moves no buffer."""
        for (name, parameter), view in zip(self.parameters, self._views, strict=True):
            if self.mirrored or parameter.data_ptr() != view.data_ptr():
                self._check_kind(name, parameter)
                view.copy_(parameter.detach())
                if not self.mirrored:
                    # Something gave the tensor other memory (an assignment to .data): its value is taken, and it.
                    parameter.data = view
        if not parameters_only:
            self.statistics.pull(overwritten=self.vector._version != self._written)
            self._written = self.vector._version

    def _check_kind(self, name: str, parameter: Tensor) -> None:
        was, now = self._kinds[name], (parameter.shape, parameter.dtype, parameter.device)
        if now != was:
            shapes = [f"{tuple(shape)} of {dtype} on {device}" for shape, dtype, device in (was, now)]
            raise RuntimeError(
                f"parameter {name} was {shapes[0]} when the loop joined, and is {shapes[1]} now\n"
                "  change models before they join: leave the `with`, and join again"
            )

    def push(self) -> None:
        """Bring the model up to date with the vector."""
        if self.mirrored:
            for (_, parameter), view in zip(self.parameters, self._views, strict=True):
                parameter.data.copy_(view)
        # Whatever writes to the vector counts its versions up; steps of the optimizer do not.
        if self.vector._version != self._written:
            self.statistics.push()
            self._written = self.vector._version

    def gradient(self, absent: frozenset[int] = frozenset()) -> Tensor:
        """The gradients as a vector like the model's: zeros where there is none, and for buffers.

        Where dtypes allow, the model's gradients are views of it from then on: a vector that is clipped in place needs
        no way back. Those of parameters whose ids are in ``absent`` belong to another step. If gradients are to be
        ``unseen``, they are not touched, and the vector has no numbers: whoever looks at it is told by torch.
        """
        own = {name: p.grad for name, p in self.parameters if p.grad is not None and id(p) not in absent}
        if any(gradient.layout is not torch.strided or gradient.requires_grad for gradient in own.values()):
            self._refuse_gradients()
        if self.unseen:
            self._own = own
            return torch.empty_like(self.vector, device="meta")
        return self._packed(own)

    def _packed(self, own: dict[str, Tensor]) -> Tensor:
        g = self._room()
        known = [(p, part, own.get(name)) for (name, p), part in zip(self.parameters, self._parts, strict=True)]
        torch._foreach_zero_([*(part for _, part, mine in known if mine is None), self.buffers(g)])
        if own:
            present = [(part, mine.detach()) for _, part, mine in known if mine is not None]
            torch._foreach_copy_([part for part, _ in present], [mine for _, mine in present])
        if not self.mirrored:
            for parameter, part, mine in known:
                if mine is not None:
                    parameter.grad = part.data
        return g

    def guarded(self, g: Tensor, fine: Tensor | None) -> None:
        """A gradient became zero where it was not ``fine``, before anybody else had it."""

    def unseen_are_finite(self) -> bool:
        """Whether the gradients that nobody is to see are finite."""
        if not self._own:
            return True
        # As in is_finite: one look at all of them, and only where that overflows one at each.
        lengths = [length.float() for length in torch._foreach_norm([g.detach() for g in self._own.values()])]
        return bool(torch.stack(lengths).isfinite().all()) or all(is_finite(_real(g)) for g in self._own.values())

    def _refuse_gradients(self) -> None:
        for name, parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.requires_grad:
                raise TypeError(
                    f"the gradient of {name} has a graph of its own (create_graph=True), which would be lost\n"
                    "  this optimizer cannot be joined"
                )
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise TypeError(
                    f"the gradient of {name} is sparse ({parameter.grad.layout}), and models are averaged whole\n"
                    "  make the embedding with sparse=False"
                )

    def _room(self) -> Tensor:
        """The last step's memory again, unless a strategy still has it, or a user who looks at old gradients."""
        # Who looks at old gradients may hold them in any form: a view, a detached tensor, a NumPy array.
        free = self._shown is not None and sys.getrefcount(self._shown) <= 2 and _tensors_in(self._shown) <= self._held
        if self._shown is None or not free:
            fresh = torch.zeros_like(self.vector)
            self._parts = list(self._seen(fresh))
            # Other objects for the same memory are given away, so that it is known when nobody has them any more.
            self._shown = fresh.data
            del fresh
            self._held = _tensors_in(self._shown)
        return self._shown

    def set_gradient(self, g: Tensor | None, *, of_all: bool) -> None:
        """Give the model these gradients; with None it has none, and an optimizer's step does nothing.

        ``of_all``: they may come from other nodes as well.
        """
        self._own = {}
        if g is not None and g.is_meta:
            return
        if g is None:
            for _, parameter in self.parameters:
                parameter.grad = None
        elif self.mirrored or g is not self._shown:
            self._copy_gradient(g, of_all=of_all and g is not self._shown)

    def _copy_gradient(self, g: Tensor, *, of_all: bool) -> None:
        for (_, parameter), part in zip(self.parameters, self._seen(g), strict=True):
            # A parameter that took no part here may have done so elsewhere: then its gradient is zero, and the same
            # step is taken on all nodes, decay and momentum included. A node's own gradient leaves it out of both.
            if parameter.requires_grad and (of_all or parameter.grad is not None or bool(part.count_nonzero())):
                parameter.grad = part.to(parameter.dtype, copy=True)

    def parts_of(self, parameters: list[Tensor], g: Tensor) -> Tensor:
        """The part of a vector that belongs to some of the parameters; nothing, if they do not train."""
        wanted = {id(parameter) for parameter in parameters}
        pairs = zip(self.parameters, self._layout.views(g), strict=False)
        parts = [part.reshape(-1) for (_, tensor), part in pairs if id(tensor) in wanted]
        return torch.cat(parts) if parts else g.new_zeros(0)

    def not_finite(self, vector: Tensor) -> str | None:
        """The name of the first tensor in a vector like the model's that is not finite; None where all are."""
        named = self._own.items() if vector.is_meta else zip(self._layout.names, self.views(vector), strict=True)
        return next((name for name, part in named if not is_finite(_real(part))), None)

    def load(self, model: nn.Module, vector: Tensor) -> None:
        """Write a vector into another copy of the same model."""
        named = dict(model.named_parameters())
        for (name, _), part in zip(self.parameters, self._seen(vector), strict=True):
            if name not in named:
                raise RuntimeError(
                    f"parameter {name} is no longer part of the model\n  leave the `with`, and join again"
                )
            named[name].data.copy_(part)
        self.statistics.load(dict(model.named_buffers()), self._layout.views(vector)[len(self.parameters) :])

    def release(self) -> None:
        """Give every tensor memory of its own again."""
        if not self.mirrored:
            for _, parameter in self.parameters:
                parameter.data = parameter.data.clone()


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor


def _tensors_in(tensor: Tensor) -> int:
    """How many tensors share this one's memory, itself included."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's numbers lie side by side, in whatever order: channels_last, for one."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
