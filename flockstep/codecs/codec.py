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
    """What a codec is: it turns a vector into a ``Message`` and back, as ``flockstep.testing.check_codec`` checks.

    Example:
        message = codec.encode(v, node.rng)
        near = codec.decode(message, node.params)
    """

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
        """The vector in a message, new, on the device of ``near``, the receiver's own vector.

        Always finite: CodecRange where a message, hostile or garbled, says otherwise.
        """
        ...

    def error_bound(self, v: Tensor) -> Tensor | float:
        """How far each decoded coordinate may lie from ``v``: one number, or one per coordinate."""
        ...


def finite(codec: Codec, v: Tensor) -> None:
    """CodecRange where a value of ``v`` is not finite."""
    _floating(codec, v)
    if not _all_finite(v):
        raise CodecRange(f"{type(codec).__name__} cannot code a vector with {_what_is_not_finite(v)}")


def largest(codec: Codec, v: Tensor) -> float:
    """The largest magnitude in ``v`` (0 when empty); CodecRange when a value is not finite."""
    _floating(codec, v)
    if v.numel() == 0:
        return 0.0
    # One pass and no copy, several times faster than isfinite: a NaN comes through as both.
    low, high = torch.aminmax(v.detach())
    most = float(torch.maximum(-low, high))
    if not math.isfinite(most):
        finite(codec, v)
    return most


def sound(codec: Codec, decoded: Tensor) -> Tensor:
    """What was decoded; CodecRange where a value of it is not finite, which no vector that was coded had."""
    if not _all_finite(decoded):
        raise CodecRange(f"{type(codec).__name__} cannot decode a message with {_what_is_not_finite(decoded)}")
    return decoded


def _floating(codec: Codec, v: Tensor) -> None:
    if not v.is_floating_point():
        raise TypeError(f"{type(codec).__name__} codes floating-point vectors, got {v.dtype}")


def _all_finite(v: Tensor) -> bool:
    v = v.detach()
    if v.numel() == 0:
        return True
    if v.dtype in (torch.float32, torch.float64):
        # A value that is not finite makes a sum that is not, and nothing looks faster. It can also overflow by itself.
        return math.isfinite(v.sum()) or bool(v.isfinite().all())
    low, high = torch.aminmax(v)
    return math.isfinite(low) and math.isfinite(high)


def _what_is_not_finite(v: Tensor) -> str:
    flat = v.detach().flatten()
    bad = (~flat.isfinite()).nonzero().view(-1)
    first = int(bad[0])
    what, where = f"{float(flat[first])}", f"index {first}"
    if len(bad) == 1:
        return f"1 value that is not finite: {what} at {where}"
    return f"{len(bad)} values that are not finite: the first is {what} at {where}"


def readable(codec: Codec, message: Message, near: Tensor, *, nbytes: int) -> None:
    """CodecRange unless the message is this codec's, shaped like ``near``, with ``nbytes`` bytes of data."""
    kind = type(codec).__name__
    if message.codec != codec.name:
        raise CodecRange(f"{kind} cannot decode a message of {message.codec}, only of {codec.name}")
    if tuple(message.shape) != tuple(near.shape):
        shapes = f"{tuple(message.shape)} for a vector of shape {tuple(near.shape)}"
        raise CodecRange(f"{kind} cannot decode a message of shape {shapes}")
    if not message.dtype.is_floating_point:
        raise CodecRange(f"{kind} cannot decode a message of {message.dtype}, only of floating-point numbers")
    if message.data.numel() != nbytes:
        raise CodecRange(f"{kind} cannot decode {message.data.numel()} bytes of data, {nbytes} are needed")
