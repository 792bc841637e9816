"""How much of a decoded difference to believe, where a codec rounds.

    v_i <- v_i + w r (Q(v_j) - Q(v_i)),      r = 1 - (|Q(v_i) - v_i|^2 + |Q(v_j) - v_j|^2) / |Q(v_j) - Q(v_i)|^2

is the share that brings two nodes nearest to each other, where errors are independent of each other and of the
difference: with r = 1, errors larger than the difference would drive them apart, a little further every time. Each node
knows its own error, and it travels with the message; both come to the same r.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from flockstep.message import Message, stamped, unstamped

_FLOAT, _WHOLE = struct.Struct("<d"), struct.Struct("<q")


def error(decoded: Tensor, v: Tensor) -> float:
    """How far a vector as its receivers decode it lies from it, squared."""
    return _squared(decoded - v)


def believed(difference: Tensor, errors: float) -> float:
    """The share of a difference of two decoded vectors that is no error; all of it where there is none."""
    if errors == 0.0:
        return 1.0
    squared = _squared(difference)
    return max(0.0, 1 - errors / squared) if squared > 0 else 0.0


def marked(message: Message, value: float, number: int = 0) -> Message:
    """The message with a float and a whole number before its data."""
    (bits,) = _WHOLE.unpack(_FLOAT.pack(value))
    return stamped(message, bits, number)


def unmarked(message: Message) -> tuple[float, int, Message]:
    """The float, the number, and the message as it was; ValueError where it is not marked."""
    bits, number, inner = unstamped(message)
    return float(_FLOAT.unpack(_WHOLE.pack(bits))[0]), number, inner


def _squared(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v, dtype=torch.promote_types(v.dtype, torch.float32))) ** 2
