"""What came of background rounds, for nodes that come while these are under way: they only hear of it."""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flockstep.backends.real.rounds.council.words import Key
from flockstep.errors import LostPeer
from flockstep.message import HEADER_BYTES, Message

ASK_RESULT = "flockstep result"
# An average in few bits takes two exchanges, and is done once more where the view has changed meanwhile. Of a mean
# the last is enough: the next needs the newcomer, too.
_REMEMBERED_EXCHANGES = 4
_LENGTH = struct.Struct("<Q")

Result = tuple[tuple[int, ...], Any]
"""Who took part, and the mean or the messages."""


class Results:
    """Those of this node."""

    def __init__(self) -> None:
        self._by_channel: dict[str, deque[tuple[Key, Result]]] = {}

    def remember(self, key: Key, ranks: tuple[int, ...], result: Tensor | Sequence[Message]) -> None:
        """Keep a copy of a result for a while."""
        copy = result.clone() if isinstance(result, Tensor) else list(result)
        most = 1 if isinstance(result, Tensor) else _REMEMBERED_EXCHANGES
        self._by_channel.setdefault(key.channel, deque(maxlen=most)).append((key, (ranks, copy)))

    def answer(self, peer: int, question: Message) -> Message:
        """The result that is asked for, or that there is none (yet)."""
        channel, round = json.loads(question.to_bytes())
        for key, (ranks, result) in tuple(self._by_channel.get(channel, ())):
            if key == (channel, round):
                return _written(ranks, result)
        return Message.of_bytes(b"", "none")


def hear_result(ask: Callable[[Message], Message], key: Key) -> Result | None:
    """What another node knows of a round; None if it knows nothing (yet)."""
    reply = ask(Message.of_bytes(json.dumps(key).encode(), "question"))
    return _read(reply) if reply.codec == "result" else None


def _written(ranks: tuple[int, ...], result: Tensor | Sequence[Message]) -> Message:
    if isinstance(result, Tensor):
        is_mean = True
        flat = result.detach().cpu().reshape(-1)
        messages: Sequence[Message] = [Message(flat.view(torch.uint8), "mean", tuple(flat.shape), flat.dtype)]
    else:
        is_mean, messages = False, result
    head = json.dumps([is_mean, ranks, len(messages)]).encode()
    parts = [_LENGTH.pack(len(head)) + head]
    for message in messages:
        parts += [message.header(), message.to_bytes()]
    return Message.of_bytes(b"".join(parts), "result")


def _read(reply: Message) -> Result:
    data = reply.to_bytes()
    try:
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        is_mean, ranks, count = json.loads(data[_LENGTH.size : at])
        messages = []
        for _ in range(count):
            codec, shape, dtype, size = Message.read_header(data[at : at + HEADER_BYTES])
            at += HEADER_BYTES
            body = Message.of_bytes(data[at : at + size]).data
            messages.append(Message(body, codec, shape, dtype))
            at += size
    except (ValueError, TypeError, struct.error) as error:
        raise LostPeer(f"a result that makes no sense: {error}") from None
    if is_mean:
        return tuple(ranks), messages[0].data.view(messages[0].dtype)
    return tuple(ranks), messages
