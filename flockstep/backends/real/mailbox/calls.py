"""One call to another node: a frame and its data there, a frame and its data back."""

from __future__ import annotations

import torch

from flockstep.backends.real.mailbox.client import Connections
from flockstep.backends.real.mailbox.http import Exchange, Head
from flockstep.backends.real.mailbox.memory import Buffers, Staging
from flockstep.backends.real.mailbox.transfer import Deadline, Reader, send
from flockstep.backends.real.mailbox.wire import CHECKSUM_BYTES, FRAME_BYTES, Frame, Refused
from flockstep.message import Message

_MOST_REASON = 2000


class Calls:
    """Talks over connections; knows nothing of who is meant."""

    def __init__(self, connections: Connections, buffers: Buffers, staging: Staging) -> None:
        self._connections, self._buffers, self._staging = connections, buffers, staging

    def call(
        self, address: str, name: str, frame: Frame, message: Message, peers: str, deadline: Deadline
    ) -> tuple[Frame, Message, str]:
        """The reply, and whom the other side knows of; Refused if it said no, OSError if it said nothing."""
        data = self._staging.view(message.data)
        packed = frame.pack(message)
        connection = self._connections.take(address, name, deadline)
        exchange = Exchange(connection, client=True)
        # Once only, whatever happens: the other side may have done what it was asked before it was lost.
        try:
            head = exchange.request(frame.body_bytes, peers)
            try:
                send(connection, head, packed, data, deadline)
            except (BrokenPipeError, ConnectionResetError):
                # It may have said why before it hung up.
                self._refusal(exchange, deadline)
                raise
            answer = exchange.read(deadline)
            reader = Reader(connection, answer.rest, deadline)
            if answer.status != 200:
                raise _reason(answer, reader)
            replied, reply = receive(answer, reader, self._buffers)
        except BaseException:
            self._connections.drop(connection)
            raise
        self._connections.give_back(address, connection)
        return replied, reply, answer.peers

    def _refusal(self, exchange: Exchange, deadline: Deadline) -> None:
        try:
            answer = exchange.read(deadline)
        except OSError:
            return
        raise _reason(answer, Reader(exchange.connection, answer.rest, deadline))


def _reason(answer: Head, reader: Reader) -> Refused:
    text = reader.read(min(answer.length, _MOST_REASON)).decode(errors="replace")
    return Refused(text or f"HTTP status {answer.status}", answer.status)


def receive(head: Head, reader: Reader, buffers: Buffers) -> tuple[Frame, Message]:
    """The message of a body whose head was read; Refused where it is not one."""
    frame = read_frame(head, reader)
    return frame, read_message(frame, reader, buffers)


def read_frame(head: Head, reader: Reader) -> Frame:
    """The frame at the beginning of a body."""
    if head.length < FRAME_BYTES + CHECKSUM_BYTES:
        raise Refused(f"a message has at least {FRAME_BYTES + CHECKSUM_BYTES} bytes, this body has {head.length}")
    frame = Frame.unpack(reader.read(FRAME_BYTES))
    if frame.body_bytes != head.length:
        raise Refused(f"the head says {head.length} bytes, the message {frame.body_bytes}")
    return frame


def read_message(frame: Frame, reader: Reader, buffers: Buffers) -> Message:
    """The data after a frame, once its checksum is right."""
    try:
        buffer = buffers.take(frame.length)
    except MemoryError:
        raise Refused(f"this node has no memory for a message of {frame.length} bytes", 507) from None
    reader.read_into(buffer.data)
    reader.verify()
    data = torch.frombuffer(buffer, dtype=torch.uint8) if frame.length else torch.empty(0, dtype=torch.uint8)
    try:
        return Message(data, frame.codec, frame.shape, frame.dtype)
    except (TypeError, ValueError) as error:
        raise Refused(str(error)) from None
