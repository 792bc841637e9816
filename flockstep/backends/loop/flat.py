"""The user's model as one vector: trainable parameters first, then float buffers such as batch-norm statistics.

Where all share a dtype they become views of the vector, and nothing is ever copied. Where they do not, the vector holds
them in the widest dtype and is kept in step by ``pull`` and ``push``.
"""

from __future__ import annotations

import sys
import weakref

import torch
from torch import Tensor, nn

from flockstep.vector import Layout


class FlatModel:
    """A model, its vector, and its gradients as a vector."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("this model has no trainable parameters: nothing to train together")
        buffers = [(name, b) for name, b in model.named_buffers() if b.is_floating_point()]
        self._tensors: list[tuple[str, Tensor]] = [*self._parameters, *buffers]
        frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self.rest: dict[str, Tensor] = dict(
            [*frozen, *((name, b) for name, b in model.named_buffers() if not b.is_floating_point())]
        )
        """What is not averaged: frozen parameters and integer buffers."""
        devices = {tensor.device for _, tensor in self._tensors}
        if len(devices) > 1:
            raise ValueError(
                f"this model lies on several devices ({', '.join(map(str, devices))}); one per node is needed"
            )
        dtypes = {tensor.dtype for _, tensor in self._tensors}
        self.mirrored = len(dtypes) > 1
        widest = max(dtypes, key=lambda dtype: dtype.itemsize)
        # Two 16-bit formats have no common one of their own width.
        dtype = torch.float32 if self.mirrored and widest.itemsize == 2 else widest
        names, shapes = zip(*((name, tensor.shape) for name, tensor in self._tensors), strict=True)
        self._layout = Layout(names, shapes, dtype)
        self.vector = self._layout.pack(tensor.to(dtype) for _, tensor in self._tensors)
        self._views = self._layout.views(self.vector)
        self._shown: Tensor | None = None
        self._parts: list[Tensor] = []
        self._lent: list[weakref.ref[Tensor]] = []
        if not self.mirrored:
            for (_, tensor), view in zip(self._tensors, self._views, strict=True):
                tensor.data = view

    def buffers(self, vector: Tensor) -> Tensor:
        """The part of a vector that holds buffers: all that changes between two steps."""
        trained = len(self._parameters)
        return vector[self._layout.starts[trained] if trained < len(self._tensors) else vector.numel() :]

    def views(self, vector: Tensor) -> list[Tensor]:
        """The model's tensors in a vector like its own."""
        return self._layout.views(vector)

    def describe(self) -> list[str]:
        """One line per tensor, for nodes to compare: name, shape, dtype."""
        everything = [*self._tensors, *self.rest.items()]
        return [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in everything]

    def pull(self) -> None:
        """Bring the vector up to date with the model."""
        for (_, tensor), view in zip(self._tensors, self._views, strict=True):
            if self.mirrored:
                view.copy_(tensor.detach())
            elif tensor.data_ptr() != view.data_ptr():
                # Something gave the tensor other memory (module.to, an assignment to .data): take its value, and it.
                view.copy_(tensor.detach())
                tensor.data = view

    def push(self) -> None:
        """Bring the model up to date with the vector."""
        if self.mirrored:
            for (_, tensor), view in zip(self._tensors, self._views, strict=True):
                tensor.data.copy_(view)

    def gradient(self) -> Tensor:
        """The gradients as a vector like the model's: zeros where there is none, and for buffers.

        Where dtypes allow, the model's gradients are views of it from then on: a vector that is clipped in place needs
        no way back.
        """
        g = self._room()
        pairs = [(parameter, part) for (_, parameter), part in zip(self._parameters, self._parts, strict=True)]
        present = [(parameter, part) for parameter, part in pairs if parameter.grad is not None]
        torch._foreach_zero_([part for parameter, part in pairs if parameter.grad is None] + [self.buffers(g)])
        if present:
            gradients = [parameter.grad.detach() for parameter, _ in present if parameter.grad is not None]
            torch._foreach_copy_([part for _, part in present], gradients)
        self._lent.clear()
        if not self.mirrored:
            for parameter, part in present:
                parameter.grad = part.data
                self._lent.append(weakref.ref(parameter.grad))
        return g

    def _room(self) -> Tensor:
        """The last step's memory again, unless a strategy still has it, or a user who looks at old gradients."""
        free = self._shown is not None and sys.getrefcount(self._shown) <= 2
        if self._shown is None or not free or any(lent() is not None for lent in self._lent):
            fresh = torch.zeros_like(self.vector)
            self._parts = self._layout.views(fresh)[: len(self._parameters)]
            # Other objects for the same memory are given away, so that it is known when nobody has them any more.
            self._shown = fresh.data
        return self._shown

    def set_gradient(self, g: Tensor | None) -> None:
        """Give the model these gradients; with None it has none, and an optimizer's step does nothing."""
        if g is None:
            for _, parameter in self._parameters:
                parameter.grad = None
        elif self.mirrored or g is not self._shown:
            self._copy_gradient(g)

    def _copy_gradient(self, g: Tensor) -> None:
        for (_, parameter), part in zip(self._parameters, self._layout.views(g), strict=False):
            # A parameter that took no part stays out of it (its momentum and decay too), unless other nodes' did.
            if parameter.grad is not None or bool(part.count_nonzero()):
                parameter.grad = part.to(parameter.dtype, copy=True)

    def parts_of(self, parameters: list[Tensor], g: Tensor) -> Tensor:
        """The part of a vector that belongs to some of the parameters."""
        wanted = {id(parameter) for parameter in parameters}
        pairs = zip(self._tensors, self._layout.views(g), strict=True)
        return torch.cat([part.reshape(-1) for (_, tensor), part in pairs if id(tensor) in wanted])

    def load(self, model: nn.Module, vector: Tensor) -> None:
        """Write a vector into another copy of the same model."""
        named = dict(model.named_parameters()) | dict(model.named_buffers())
        for (name, _), part in zip(self._tensors, self._layout.views(vector), strict=True):
            named[name].data.copy_(part)

    def release(self) -> None:
        """Give every tensor memory of its own again."""
        if not self.mirrored:
            for _, tensor in self._tensors:
                tensor.data = tensor.data.clone()
