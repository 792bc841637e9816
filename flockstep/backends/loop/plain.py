"""Tensors as the plain numbers they are made of: to send them, and to keep them in a file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_OFTEN = 64


def now_and_then(count: int) -> bool:
    """Whether it is time for a look that costs something: at 1, 2, 4, 8, ... 64, and then every so often."""
    return count & (count - 1) == 0 or count % _OFTEN == 0


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensor itself; of one that wraps others (quantised weights, for one), those, in a fixed order."""
    inside: Any = tensor.data
    if not is_traceable_wrapper_subclass(inside):
        return [tensor]
    names, _ = inside.__tensor_flatten__()
    return [plain for name in names for plain in plain_tensors(getattr(inside, name))]


def as_bytes(tensor: Tensor) -> Tensor:
    """A tensor's numbers, bit by bit."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def take_bytes(tensor: Tensor, data: Tensor) -> None:
    """Write numbers that ``as_bytes`` read, here or elsewhere, into a tensor like theirs."""
    write(tensor, data.to(tensor.device).view(tensor.dtype).view(tensor.shape))


def write(tensor: Tensor, value: Tensor) -> None:
    """Let a tensor hold a value, which most hold already: constants are not written to, however they lie in memory."""
    if torch.equal(tensor.detach(), value) or torch.equal(as_bytes(tensor), as_bytes(value)):
        return
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise ValueError(
            "a buffer that differs between nodes holds one number in several places (expand)\n"
            "  give it memory of its own: clone()"
        )
    tensor.data.copy_(value)
