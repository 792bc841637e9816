"""Messages with numbers on them: what a version is worth knowing of travels with the vector it is the version of."""

from __future__ import annotations

import struct

import torch

from flockstep.message import Message

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
