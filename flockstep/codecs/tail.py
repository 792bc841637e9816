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

from flockstep.codecs.codec import Codec, finite, sound
from flockstep.codecs.raw import Raw
from flockstep.errors import CodecRange
from flockstep.message import Message
from flockstep.node import Node


def trained_of(v: Tensor, node: Node) -> int:
    """How many of a vector's coordinates train: of one like the model as many as there, of any other all."""
    return node.trained if v.numel() == node.params.numel() else v.numel()


def with_tail(message: Message, tail: Tensor) -> Message:
    """A message, and behind it the bytes of ``tail``."""
    if tail.numel() == 0:
        return message
    finite(Raw(), tail)
    more = tail.detach().contiguous().view(torch.uint8)
    shape = (prod(message.shape) + tail.numel(),)
    return Message(torch.cat([message.data.to(more.device), more]), message.codec, shape, message.dtype)


def without_tail(message: Message, near: Tensor, count: int) -> tuple[Message, Tensor]:
    """The message that ``with_tail`` began with, of a vector like ``near``, and the tail of so many numbers."""
    if count == 0:
        return message, near[:0]
    whole = near.numel() + count
    if message.shape != (whole,) or message.dtype != near.dtype:
        raise CodecRange(f"a message of shape {message.shape} and {message.dtype} is not {whole} of {near.dtype}")
    edge = message.data.numel() - count * near.dtype.itemsize
    if edge < 0:
        raise CodecRange(f"a message of {message.data.numel()} bytes is too short for {count} statistics")
    # A copy starts at an aligned address, which a slice need not.
    tail = message.data[edge:].to(near.device, copy=True).view(near.dtype)
    return Message(message.data[:edge], message.codec, (near.numel(),), message.dtype), sound(Raw(), tail)


@dataclass(frozen=True)
class _Sparing:
    """A codec for what trains of a node's model, which leaves the statistics behind it as they are."""

    inner: Codec
    node: Node

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
        trained = trained_of(v, self.node)
        return with_tail(self.inner.encode(v[:trained], rng), v[trained:])

    def decode(self, message: Message, near: Tensor) -> Tensor:
        """Both in one vector."""
        trained = trained_of(near, self.node)
        inner, tail = without_tail(message, near[:trained], near.numel() - trained)
        return torch.cat([self.inner.decode(inner, near[:trained]), tail])

    def error_bound(self, v: Tensor) -> Tensor | float:
        """That of what is coded, and none of the rest."""
        bound, trained = torch.zeros_like(v), trained_of(v, self.node)
        bound[:trained] = self.inner.error_bound(v[:trained])
        return bound


def sparing(codec: Codec, node: Node) -> Codec:
    """The codec for what trains of a node's model; itself where there are no statistics, or where it is exact."""
    return codec if isinstance(codec, Raw) or node.trained == node.params.numel() else _Sparing(codec, node)
