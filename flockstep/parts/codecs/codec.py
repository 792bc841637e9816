"""What a codec is, and the checks every codec makes of what it is given."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flockstep.errors import CodecRange
from flockstep.message import Message


class Codec(Protocol):
    """Turns a vector into a Message and back, as ``flockstep.testing.check_codec`` checks."""

    @property
    def name(self) -> str:
        """The mark on its messages, at most 16 characters: it differs where the bytes mean another thing."""
        ...

    @property
    def unbiased(self) -> bool:
        """Whether the decoded vector is, on average over ``rng``, the encoded one."""
        ...

    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        """The message for ``v``, in memory of its own; CodecRange where ``v`` cannot be coded."""
        ...

    def decode(self, message: Message, near: Tensor) -> Tensor:
        """The vector in a message, new, on the device of ``near``, the receiver's own vector."""
        ...

    def error_bound(self, v: Tensor) -> Tensor | float:
        """How far each decoded coordinate may lie from ``v``: one number, or one per coordinate."""
        ...


def finite(codec: Codec, v: Tensor) -> float:
    """The largest magnitude in ``v`` (0 when empty); CodecRange when a value is not finite."""
    kind = type(codec).__name__
    if not v.is_floating_point():
        raise TypeError(f"{kind} codes floating-point vectors, got {v.dtype}")
    if v.numel() == 0:
        return 0.0
    # One pass and no copy, several times faster than isfinite: a NaN comes through as both.
    low, high = torch.aminmax(v.detach())
    largest = float(torch.maximum(-low, high))
    if not math.isfinite(largest):
        count = v.numel() - int(torch.isfinite(v).sum())
        what = "1 value that is not finite" if count == 1 else f"{count} values that are not finite"
        raise CodecRange(f"{kind} cannot code a vector with {what}")
    return largest


def readable(codec: Codec, message: Message, near: Tensor, *, nbytes: int) -> None:
    """CodecRange unless the message is this codec's, shaped like ``near``, with ``nbytes`` bytes of data."""
    kind = type(codec).__name__
    if message.codec != codec.name:
        raise CodecRange(f"{kind} cannot decode a message of {message.codec}, only of {codec.name}")
    if tuple(message.shape) != tuple(near.shape):
        shapes = f"{tuple(message.shape)} for a vector of shape {tuple(near.shape)}"
        raise CodecRange(f"{kind} cannot decode a message of shape {shapes}")
    if message.data.numel() != nbytes:
        raise CodecRange(f"{kind} cannot decode {message.data.numel()} bytes of data, {nbytes} are needed")
