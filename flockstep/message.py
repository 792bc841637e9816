"""What travels between nodes: bytes, and a short header that says how to read them. Never pickle."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

_HEADER = struct.Struct("<16sBB6x4qQ")
HEADER_BYTES = _HEADER.size
_MOST_DIMENSIONS = 4
_MOST_ELEMENTS = 2**40
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Message:
    """A coded vector on its way: its bytes, and what is needed to read them.

    Args:
        data: The bytes, as a flat uint8 tensor.
        codec: Name of the codec that wrote them, 1 to 16 ASCII characters.
        shape: Shape of the vector that they decode to, at most 4 dimensions.
        dtype: Dtype of that vector.

    Example:
        message = fs.codecs.Raw().encode(node.params, node.rng)
        node.send(peer, message)
    """

    data: Tensor
    codec: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.data.dtype != torch.uint8 or self.data.dim() != 1:
            raise TypeError(f"Message.data must be flat uint8, got {self.data.dtype} of shape {tuple(self.data.shape)}")
        if not (self.codec.isascii() and 0 < len(self.codec) <= 16):
            raise ValueError(f"Message.codec must be 1 to 16 ASCII characters, got {self.codec!r}")
        if len(self.shape) > _MOST_DIMENSIONS:
            raise ValueError(f"Message.shape must have at most {_MOST_DIMENSIONS} dimensions, got {self.shape}")
        if self.dtype not in _DTYPES:
            raise TypeError(f"Message.dtype must be one of {', '.join(map(str, _DTYPES))}, got {self.dtype}")

    @classmethod
    def of_bytes(cls, data: bytes, codec: str = "bytes") -> Message:
        """A few bytes, for what is no vector."""
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return cls(tensor, codec, (len(data),), torch.uint8)

    def to_bytes(self) -> bytes:
        """The data as bytes."""
        return self.data.cpu().numpy().tobytes()

    @property
    def nbytes(self) -> int:
        """How many bytes travel, header included: the number every report is made of."""
        return HEADER_BYTES + self.data.numel()

    def copy(self) -> Message:
        """The same message in memory of its own."""
        return Message(self.data.clone(), self.codec, self.shape, self.dtype)

    def header(self) -> bytes:
        """The fixed-size header that goes before the data."""
        padded = self.shape + (0,) * (_MOST_DIMENSIONS - len(self.shape))
        code = _DTYPES.index(self.dtype)
        return _HEADER.pack(self.codec.encode(), code, len(self.shape), *padded, self.data.numel())

    @classmethod
    def read_header(cls, header: bytes) -> tuple[str, tuple[int, ...], torch.dtype, int]:
        """Codec, shape, dtype and the number of data bytes that follow; ValueError where it makes no sense."""
        if len(header) != HEADER_BYTES:
            raise ValueError(f"a message's header has {HEADER_BYTES} bytes, got {len(header)}")
        field, code, dimensions, *rest = _HEADER.unpack(header)
        *shape, length = rest
        name, _, padding = field.partition(b"\0")
        if not name.isascii() or not name.decode("ascii").isprintable() or not name or any(padding):
            raise ValueError("a message's codec must be 1 to 16 printable ASCII characters")
        if code >= len(_DTYPES):
            raise ValueError(f"there is no dtype {code} in a message's header")
        if dimensions > _MOST_DIMENSIONS or min(shape) < 0 or any(shape[dimensions:]) or any(header[18:24]):
            raise ValueError("a message's shape makes no sense")
        if math.prod(shape[:dimensions]) > _MOST_ELEMENTS:
            raise ValueError(f"a message has at most {_MOST_ELEMENTS} numbers")
        return name.decode("ascii"), tuple(shape[:dimensions]), _DTYPES[code], length


NOTHING = Message.of_bytes(b"", "nothing")
"""For a question that needs no words, and a reply that has none."""


def ring_bytes(nbytes: int, size: int) -> int:
    """What each of ``size`` nodes sends, and receives, in a ring mean of ``nbytes``: 2 (n-1) chunks of 1/n."""
    return round(2 * (size - 1) * nbytes / size)


_STAMP = struct.Struct("<qq")


def stamped(message: Message, first: int, second: int = 0) -> Message:
    """The message with two whole numbers before its data."""
    stamp = torch.frombuffer(bytearray(_STAMP.pack(first, second)), dtype=torch.uint8)
    data = torch.cat([stamp.to(message.data.device), message.data])
    return Message(data, message.codec, message.shape, message.dtype)


def unstamped(message: Message) -> tuple[int, int, Message]:
    """The two numbers, and the message as it was; ValueError where there is no stamp."""
    if message.data.numel() < _STAMP.size:
        raise ValueError(f"a stamped message has at least {_STAMP.size} bytes, got {message.data.numel()}")
    first, second = _STAMP.unpack(message.data[: _STAMP.size].cpu().numpy().tobytes())
    # A copy of its own: numbers in it begin at an aligned address then.
    inner = Message(message.data[_STAMP.size :].clone(), message.codec, message.shape, message.dtype)
    return first, second, inner
