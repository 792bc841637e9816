"""A model as one flat vector, and back: the only packer.

Averaging, clipping and coding are then single kernels on one tensor. Tied weights are packed once; parameters that do
not train (``requires_grad=False``) stay out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

WIDE = (torch.float32, torch.float64)
"""What can be summed as it is."""
_ALIGNMENT = 64
"""Bytes. Some of cuDNN's kernels read many numbers at once, and fail where a tensor begins in between."""


@dataclass(frozen=True)
class Layout:
    """Where each parameter of a model lies in its flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module's trainable parameters, in the module's own order."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("this model has no trainable parameters: nothing to put into a vector")
        first, dtype = named[0][0], named[0][1].dtype
        for name, p in named:
            if p.dtype != dtype:
                raise ValueError(
                    f"parameters of one vector must share a dtype, but {first} is {dtype} and {name} is {p.dtype}"
                )
        return cls(tuple(name for name, _ in named), tuple(p.shape for _, p in named), dtype)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each begins: at an aligned address, as memory of its own would; between two are zeros."""
        step, ends, starts = _ALIGNMENT // self.dtype.itemsize, 0, []
        for shape in self.shapes:
            starts.append(-(-ends // step) * step)
            ends = starts[-1] + shape.numel()
        return tuple(starts)

    @property
    def size(self) -> int:
        """How many numbers the vector has."""
        return self.starts[-1] + self.shapes[-1].numel()

    def pack(self, tensors: Iterable[Tensor], out: Tensor | None = None) -> Tensor:
        """A flat vector from one tensor per parameter; a new one, unless it is to be written into ``out``."""
        parts: list[Tensor] = []
        ends = 0
        for start, tensor in zip(self.starts, tensors, strict=True):
            if start > ends:
                parts.append(tensor.new_zeros(start - ends))
            parts.append(tensor.detach().reshape(-1))
            ends = start + tensor.numel()
        return torch.cat(parts, out=out)

    def views(self, vector: Tensor) -> list[Tensor]:
        """The vector's parts, each in its parameter's shape, sharing the vector's memory."""
        return [
            vector[start : start + shape.numel()].view(shape)
            for start, shape in zip(self.starts, self.shapes, strict=True)
        ]

    def point(self, parameters: Sequence[Tensor], vector: Tensor) -> None:
        """Let parameters be views of a vector: no copy, and what is written to one is seen in the other."""
        for parameter, view in zip(parameters, self.views(vector), strict=True):
            parameter.data = view


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters a Layout packs, in its order."""
    return [p for p in module.parameters() if p.requires_grad]


def norm(v: Tensor) -> Tensor:
    """The Euclidean norm, accumulated in float32 or better whatever the vector's own precision.

    It stays where the vector is: a GPU need not be waited for unless somebody looks. Of a matrix it measures each row,
    and keeps the last axis.
    """
    wide = v.dtype if v.dtype in WIDE else torch.float32
    rows = {"dim": -1, "keepdim": True} if v.ndim > 1 else {}
    length: Tensor = torch.linalg.vector_norm(v, dtype=wide, **rows)
    return length


def is_finite(v: Tensor) -> bool:
    """Whether every number of a tensor is finite. Looks at it, so a GPU is waited for."""
    # A sum is several times faster than any other look, and one number is enough to spoil it; but it may overflow where
    # no number does. Halves are slow to sum on many processors.
    if v.dtype in WIDE and bool(v.sum().isfinite()):
        return True
    if not v.numel():
        return True
    low, high = torch.aminmax(v)
    return bool(low.isfinite()) and bool(high.isfinite())
