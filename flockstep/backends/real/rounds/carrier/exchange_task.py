"""An exchange, as an attempt carries it out: a message to each of the others, and one from each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from flockstep.backends.real.mailbox.memory import Buffers, Staging
from flockstep.backends.real.mailbox.wire import LONGEST
from flockstep.backends.real.rounds.carrier.mean_task import Frame, next_of, piece, pieces
from flockstep.backends.real.rounds.carrier.streams import FrameKind, Garbage
from flockstep.message import HEADER_BYTES, Message


@dataclass
class _Arriving:
    """What is here of a peer's message."""

    codec: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    data: NDArray[np.uint8]
    got: int = 0
    """Pieces."""

    def whole(self) -> Message:
        data = torch.from_numpy(self.data) if len(self.data) else torch.empty(0, dtype=torch.uint8)
        return Message(data, self.codec, self.shape, self.dtype)


class ExchangeTask:
    """``messages`` by the rank of who gets them."""

    brings = "messages for each of them"

    def __init__(self, messages: Mapping[int, Message], buffers: Buffers, staging: Staging) -> None:
        self._headers = {peer: memoryview(message.header()) for peer, message in messages.items()}
        self._data = {peer: staging.view(message.data) for peer, message in messages.items()}
        self._buffers = buffers
        self._sent = dict.fromkeys(messages, 0)
        self._arriving: dict[int, _Arriving] = {}

    def has_frame(self, peer: int) -> bool:
        return not self.has_sent(peer)

    def next_frame(self, peer: int) -> Frame:
        index = self._sent[peer]
        self._sent[peer] += 1
        if not index:
            return FrameKind.HEADER, 0, self._headers[peer]
        return FrameKind.OWN, index - 1, piece(self._data[peer], index - 1)

    def has_sent(self, peer: int) -> bool:
        return self._sent[peer] == 1 + pieces(len(self._data[peer]))

    def has_received(self, peer: int) -> bool:
        here = self._arriving.get(peer)
        return here is not None and here.got == pieces(len(here.data))

    def place(self, peer: int, kind: FrameKind, index: int, length: int) -> memoryview | None:
        here = self._arriving.get(peer)
        if kind is FrameKind.HEADER and here is None and length == HEADER_BYTES:
            return memoryview(bytearray(length))
        if kind is not FrameKind.OWN or here is None:
            raise Garbage("this frame has no place in an exchange")
        return next_of(here.data.data, here.got, index, length)

    def take(self, peer: int, kind: FrameKind, index: int, body: memoryview) -> None:
        if kind is FrameKind.OWN:
            self._arriving[peer].got += 1
            return
        try:
            codec, shape, dtype, length = Message.read_header(bytes(body))
            if length > LONGEST:
                raise ValueError(f"a message has at most {LONGEST} bytes, this one says {length}")
            self._arriving[peer] = _Arriving(codec, shape, dtype, self._buffers.take(length))
        except (ValueError, MemoryError) as error:
            raise Garbage(str(error) or "this node has no memory for it") from None

    def received(self) -> dict[int, Message]:
        """The messages, by who gave them."""
        return {peer: here.whole() for peer, here in self._arriving.items()}
