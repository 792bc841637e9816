"""The few largest coordinates, exactly, and zero for all others.

    Enc(v) = (i, v_i) for the k = ceil(fraction * count) coordinates of largest |v_i|; of equals, the first
    Dec = v_i at each i, 0 elsewhere

A codec of *changes*, such as gradients: of a model it would leave mostly zeros. It is not right on average; what it
leaves out must be sent later, as ``Compensated`` does.
Stich, Cordonnier, Jaggi: sparsified SGD with memory, NeurIPS 2018, arXiv 1809.07599.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.codecs.codec import finite, readable, sound
from flockstep.errors import CodecRange
from flockstep.message import Message
from flockstep.parts.suitability import MODELS

_MOST_COORDINATES = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The largest coordinates, exactly, and zero for all others: for gradients and changes.

        Enc(v) = (i, v_i) for the k = ceil(fraction * count) coordinates of largest |v_i|;   Dec = v_i at each i, else 0

    A coordinate that is sent takes four bytes for its index, and its value as it is. It is not right on average: what
    it leaves out must be sent later, as ``Compensated``, ``Choco`` and ``DPSGD`` do.

    Stich, Cordonnier, Jaggi: sparsified SGD with memory, NeurIPS 2018, arXiv 1809.07599.

    Args:
        fraction: Share of all coordinates that are sent, above 0 and at most 1; at least one is.

    Example:
        fs.DataParallel(average=fs.averages.Compensated(codec=fs.codecs.TopK(fraction=0.01)))
    """

    fraction: float = 0.01

    name: ClassVar[str] = "TopK"
    """For every fraction: pairs mean the same however many there are, and a receiver knows how many to expect."""
    unbiased: ClassVar[bool] = False
    unsuited: ClassVar[dict[str, str]] = {MODELS: "it would leave zeros of all but the largest coordinates"}

    def __post_init__(self) -> None:
        check.positive(self, "fraction", self.fraction)
        check.fraction(self, "fraction", self.fraction)

    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        """Indices in ascending order, then their values."""
        k = self._kept(v.numel())
        finite(self, v)
        flat = v.detach().flatten()
        index = _largest(flat, k).nonzero().view(-1)
        data = torch.cat([index.to(torch.int32).view(torch.uint8), flat[index].view(torch.uint8)])
        return Message(data, self.name, tuple(v.shape), v.dtype)

    def decode(self, message: Message, near: Tensor) -> Tensor:
        """The values at their places, zeros elsewhere; nothing of ``near`` but its shape."""
        count = near.numel()
        k = self._kept(count)
        readable(self, message, near, nbytes=k * (4 + message.dtype.itemsize))
        # Copies start at aligned addresses, which slices of a network buffer need not.
        index = message.data[: 4 * k].to(near.device, copy=True).view(torch.int32)
        values = message.data[4 * k :].to(near.device, copy=True).view(message.dtype)
        # Ascending, none is there twice, and the two ends answer for all.
        if k and not bool((index[1:] > index[:-1]).all() & (index[0] >= 0) & (index[-1] < count)):
            raise CodecRange(f"TopK cannot decode indices that do not ascend from 0 to at most {count - 1}")
        return sound(self, values).new_zeros(count).index_copy_(0, index.long(), values).view(near.shape)

    def error_bound(self, v: Tensor) -> Tensor:
        """Of each coordinate that is left out, its own magnitude: none is above the least that is kept."""
        flat = v.detach().flatten()
        return flat.double().abs().masked_fill(_largest(flat, self._kept(flat.numel())), 0.0).view(v.shape)

    def _kept(self, count: int) -> int:
        if count > _MOST_COORDINATES:
            raise CodecRange(f"TopK cannot code {count} coordinates, at most {_MOST_COORDINATES}: indices are int32")
        # As it is written: 0.07 of 100 are 7, though in floating point a little more.
        return math.ceil(Fraction(str(self.fraction)) * count)


def _largest(flat: Tensor, k: int) -> Tensor:
    """Whether each coordinate is one of the k largest."""
    magnitude = flat.abs()
    if k == flat.numel():
        return torch.ones_like(magnitude, dtype=torch.bool)
    least = magnitude.topk(k, sorted=False).values.min()
    chosen = magnitude > least
    # topk itself may take any of several equals; whoever codes the same vector must come to the same bytes.
    equal = (magnitude == least).nonzero().view(-1)
    chosen[equal[: k - int(chosen.sum())]] = True
    return chosen
