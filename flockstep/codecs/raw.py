"""The bytes themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flockstep.codecs.codec import finite, readable, sound
from flockstep.message import Message


@dataclass(frozen=True, kw_only=True)
class Raw:
    """No compression: a vector of any float dtype, bit for bit."""

    name: ClassVar[str] = "Raw"
    unbiased: ClassVar[bool] = True
    row_wise: ClassVar[bool] = True

    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        """The bytes of ``v``, copied once."""
        finite(self, v)
        data = v.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
        return Message(data, self.name, tuple(v.shape), v.dtype)

    def decode(self, message: Message, near: Tensor) -> Tensor:
        """The vector as it was encoded."""
        readable(self, message, near, nbytes=math.prod(message.shape) * message.dtype.itemsize)
        # A copy starts at an aligned address, which a slice of a network buffer need not.
        return sound(self, message.data.to(near.device, copy=True).view(message.dtype).reshape(message.shape))

    def error_bound(self, v: Tensor) -> float:
        """None at all."""
        return 0.0
