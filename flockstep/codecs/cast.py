"""Two bytes per coordinate: a vector in a shorter floating-point format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from flockstep import check
from flockstep.codecs.codec import largest, readable, sound
from flockstep.errors import CodecRange
from flockstep.message import Message

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Cast:
    """Rounds every coordinate to the nearest 16-bit floating-point value: two bytes each.

    Args:
        dtype: "bf16" has the range of float32; "fp16" has three more bits of precision, and a largest value of 65,504.

    Example:
        fs.Gossip(codec=fs.codecs.Cast(dtype="bf16"))
    """

    dtype: Literal["bf16", "fp16"] = "bf16"

    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.one_of(self, "dtype", self.dtype, tuple(_FORMATS))

    @property
    def name(self) -> str:
        """``Cast(bf16)``: the two formats have equally many bytes, so the name must tell them apart."""
        return f"Cast({self.dtype})"

    def encode(self, v: Tensor, rng: np.random.Generator) -> Message:
        """``v`` rounded; CodecRange where rounding would give infinity."""
        most, short = largest(self, v), _FORMATS[self.dtype]
        # Rounding keeps order, so the largest value answers for all; it must survive the way back as well.
        if not math.isfinite(torch.tensor(most, dtype=v.dtype).to(short).to(v.dtype)):
            raise CodecRange(f"Cast to {self.dtype} would make the largest value, {most:.9g}, infinite")
        data = v.detach().to(short, copy=True, memory_format=torch.contiguous_format).reshape(-1)
        return Message(data.view(torch.uint8), self.name, tuple(v.shape), v.dtype)

    def decode(self, message: Message, near: Tensor) -> Tensor:
        """The rounded vector, in the dtype it had before."""
        short = _FORMATS[self.dtype]
        readable(self, message, near, nbytes=math.prod(message.shape) * short.itemsize)
        # A copy starts at an aligned address, which a slice of a network buffer need not.
        data = message.data.to(near.device, copy=True).view(short)
        return sound(self, data.to(message.dtype).reshape(message.shape))

    def error_bound(self, v: Tensor) -> Tensor:
        """Half a unit in the last place: relative to the value, plus half the spacing next to zero."""
        info = torch.finfo(_FORMATS[self.dtype])
        return v.detach().double().abs() * (info.eps / 2) + info.tiny * info.eps / 2
