"""Statistics travel as they are, behind what is trained: in few bits a small variance may come out below zero.

A codec's error goes with the largest weights of a block, or with how far nodes lie apart in it. What trains forgives
that. The variance of a quiet channel may be smaller than the error, and the square root of less than zero is NaN,
though only for whoever evaluates: training never looks at it. Statistics are few, so they go in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from flockstep.errors import CodecRange
from flockstep.message import Message
from flockstep.parts.codecs.codec import Codec, finite, sound
from flockstep.parts.codecs.raw import Raw


def trained_of(v: Tensor, params: Tensor, trained: int) -> int:
    """How many of a vector's coordinates train: of one like the model as many as there, of any other all."""
    return trained if v.numel() == params.numel() else v.numel()


def with_tail(message: Message, tail: Tensor) -> Message:
    """A message, and behind it the bytes of ``tail``."""
    if tail.numel() == 0:
        return message
    finite(Raw(), tail)
    more = tail.detach().contiguous().view(torch.uint8)
    shape = (prod(message.shape) + tail.numel(),)
    return Message(torch.cat([message.data.to(more.device), more]), message.codec, shape, message.dtype)


def without_tail(message: Message, near: Tensor, trained: int) -> tuple[Message, Tensor]:
    """The message that ``with_tail`` began with, and the tail; ``near`` is what all of it is like."""
    count = near.numel() - trained
    if count == 0:
        return message, near[trained:]
    if message.shape != (near.numel(),) or message.dtype != near.dtype:
        raise CodecRange(f"a message of shape {message.shape} and {message.dtype} is not {near.numel()} numbers")
    edge = message.data.numel() - count * near.dtype.itemsize
    if edge < 0:
        raise CodecRange(f"a message of {message.data.numel()} bytes is too short for {count} statistics")
    # A copy starts at an aligned address, which a slice need not.
    tail = message.data[edge:].to(near.device, copy=True).view(near.dtype)
    return Message(message.data[:edge], message.codec, (trained,), message.dtype), sound(Raw(), tail)


@dataclass(frozen=True)
class Sparing:
    """A codec for what trains of a model, which leaves the statistics behind it as they are."""

    inner: Codec
    trained: int

    @property
    def name(self) -> str:
        """The inner one's: the same bytes where there are no statistics."""
        return self.inner.name

    @property
    def unbiased(self) -> bool:
        """As the inner one."""
        return self.inner.unbiased

    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        """What trains, coded, and the rest behind it."""
        return with_tail(self.inner.encode(v[: self.trained], rng), v[self.trained :])

    def decode(self, message: Message, near: Tensor) -> Tensor:
        """Both in one vector."""
        inner, tail = without_tail(message, near, self.trained)
        return torch.cat([self.inner.decode(inner, near[: self.trained]), tail])

    def error_bound(self, v: Tensor) -> Tensor | float:
        """That of what is coded, and none of the rest."""
        bound = torch.zeros_like(v)
        bound[: self.trained] = self.inner.error_bound(v[: self.trained])
        return bound


def sparing(codec: Codec, params: Tensor, trained: int) -> Codec:
    """The codec itself for models without statistics, and where it changes nothing."""
    return codec if trained == params.numel() or isinstance(codec, Raw) else Sparing(codec, trained)
