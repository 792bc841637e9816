"""One-way streams of bytes from node to node: connections of the mailbox that stay open and carry frames.

    kind  length  index  checksum                24 bytes, little-endian
    body                                          ``length`` bytes

The checksum is XXH3-64 of the body, seeded with kind + 2^8 length + 2^40 index (its lowest 64 bits). It is 0 where
nothing can be changed on its way unnoticed: under TLS, and between two nodes of one machine. What a frame is for is the
carrier's business (carrier.py); here it is written without blocking, and read without blocking straight into where it
belongs.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Protocol, cast

from xxhash import xxh3_64_intdigest

from flockstep.backends.real.rounds.council.words import Attempt

_HEAD = struct.Struct("<IIQQ")
HEAD_BYTES = _HEAD.size
PIECE_BYTES, LARGE_PIECE_BYTES = 256 * 1024 - HEAD_BYTES, 1024 * 1024 - HEAD_BYTES
"""How long a body is, of little data and of much: then a frame is a whole number of TLS records, and lies in a core's
cache; and of much data few frames have to be looked at."""
_RECORD = 16 * 1024
_JOINED = 4096
"""Up to here, copying a body behind its head is cheaper than giving the two to the system apart."""
_TOGETHER, _SURE = 32 * 1024, 64 * 1024
"""Over a slow link, sleep until so many bytes are here. That many come for sure, if so many more do: TLS may hold
one record back."""
HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Abandoned(Exception):
    """The attempt is not to be carried out any more."""


class Unreached(Exception):
    """The connection with another node broke; it may live all the same."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(f"node {peer}: {why}")
        self.peer, self.why = peer, why


class Garbage(Exception):
    """What came on a stream is not what may come there."""


class FrameKind(IntEnum):
    """What a frame is for."""

    BEGIN = 1
    """An attempt begins: which, and what this node brings to it."""
    UNLIKE = 2
    """It ends: two nodes brought different things."""
    HEADER = 3
    """The header of a message."""
    OWN = 4
    """A piece of what the sender brings."""
    SUM = 5
    """A piece of the mean."""


_KINDS = {int(kind): kind for kind in FrameKind}


def _checksum(kind: int, length: int, index: int, body: memoryview) -> int:
    return xxh3_64_intdigest(body, (kind + (length << 8) + (index << 40)) & 0xFFFFFFFFFFFFFFFF)


def _is_sure(connection: socket.socket) -> bool:
    """Whether all comes out of it as it went in: TLS sees to that, and a machine's own memory does."""
    if isinstance(connection, ssl.SSLSocket):
        return True
    # One that has hung up already has no address any more, and nothing will come out of it.
    with suppress(OSError):
        return bool(connection.getsockname()[0] == connection.getpeername()[0])
    return False


class Outgoing:
    """A stream to a peer, as one attempt after another writes to it."""

    def __init__(
        self, peer: int, channel: str, connection: socket.socket, end: Callable[[socket.socket], None]
    ) -> None:
        self.peer, self.channel, self.connection, self._end = peer, channel, connection, end
        self._is_secured, self._is_sure = isinstance(connection, ssl.SSLSocket), _is_sure(connection)
        self._parts: list[memoryview] = []
        """What is still to be written of the frame under way."""
        self.last: Attempt | None = None
        """The attempt that wrote here last."""
        self.used_at = time.monotonic()
        connection.setblocking(False)

    @property
    def is_busy(self) -> bool:
        """Whether a frame is under way."""
        return bool(self._parts)

    def begin(self, kind: FrameKind, index: int, body: memoryview) -> None:
        """Let a frame be the next; the body is read again as it is written."""
        length = len(body)
        head = _HEAD.pack(kind, length, index, 0 if self._is_sure else _checksum(kind, length, index, body))
        if length > _JOINED and not self._is_secured:
            self._parts = [memoryview(head), body]
            return
        # A small record for the head alone would cost as much as a full one.
        joined = length if length <= _JOINED else _RECORD - HEAD_BYTES
        self._parts = [memoryview(head + body[:joined])]
        if length > joined:
            self._parts.append(body[joined:])

    def push(self) -> int:
        """Write what can be written now; how many bytes. OSError where the connection is broken."""
        try:
            if self._is_secured:
                sent = self.connection.send(self._parts[0])
            else:
                sent = self.connection.sendmsg(self._parts)
        except _WOULD_BLOCK:
            return 0
        left, parts = sent, self._parts
        while parts and left >= len(parts[0]):
            left -= len(parts.pop(0))
        if left:
            parts[0] = parts[0][left:]
        return sent

    @property
    def has_ended(self) -> bool:
        """Whether the other side has hung up: it never says anything."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN | HUNG_UP)
        return bool(poll.poll(0))

    def close(self) -> None:
        """End the stream."""
        self._parts = []
        self._end(self.connection)


class Sink(Protocol):
    """Where frames go."""

    def place(self, stream: Incoming, kind: FrameKind, index: int, length: int) -> memoryview | None:
        """Memory for the body of a frame that begins; None if it must wait; Garbage where it may not come."""

    def take(self, stream: Incoming, kind: FrameKind, index: int, body: memoryview) -> None:
        """A frame is here, and whole."""


class Incoming:
    """A stream from a peer, in the hands of an attempt, or waiting for one."""

    def __init__(self, peer: int, channel: str, connection: socket.socket) -> None:
        self.peer, self.channel, self.connection = peer, channel, connection
        self._is_sure = _is_sure(connection)
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._frame: tuple[FrameKind, int, int] | None = None
        """Kind, index and length of the frame under way, once its head is here."""
        self._checksum = 0
        self._body: memoryview | None = None
        self._got = 0
        """How much is here of the head, or of the body."""
        self._woken_for = 1
        self.held: bytes | None = None
        """A BEGIN that came before this node has begun that attempt."""
        self.last: Attempt | None = None
        """The attempt that read here last."""
        self._changed = threading.Condition()
        self._in_use = self._ended = False
        connection.setblocking(False)

    # The thread of the connection ---------------------------------------------------------------------------------

    def stay(self, silence: float, patience: float) -> None:
        """Wait until the stream has ended: the peer has hung up, or this node has, or it was silent for long."""
        poll = select.poll()
        poll.register(self.connection, HUNG_UP)
        while not poll.poll(silence * 1000):
            with self._changed:
                if not self._in_use:
                    break
        with self._changed:
            if not self._in_use and self._has_more():
                # Perhaps why it hung up: it may have begun before this node.
                self._changed.wait_for(lambda: self._ended or self._in_use, patience)
            self._changed.wait_for(lambda: not self._in_use)
            self._ended = True

    def _has_more(self) -> bool:
        if self.held is not None:
            return True
        with suppress(OSError):
            return bool(socket.socket.recv(self.connection, 1, socket.MSG_PEEK))
        return False

    # Attempts -------------------------------------------------------------------------------------------------------

    def take_up(self) -> bool:
        """Have it for an attempt, unless it has ended, or another has it."""
        with self._changed:
            if self._ended or self._in_use:
                return False
            self._in_use = True
            self._changed.notify_all()
            return True

    def put_down(self) -> None:
        """Leave it to the next attempt."""
        with self._changed:
            self._in_use = False
            self._changed.notify_all()

    def close(self) -> None:
        """End the stream, of the attempt that has it."""
        self.hang_up()
        self._body = None
        self.put_down()

    def hang_up(self) -> None:
        """End the stream, from any thread: whoever has it will see that, and close it."""
        with self._changed:
            if not self._ended:
                self._ended = True
                with suppress(OSError):
                    socket.socket.shutdown(self.connection, socket.SHUT_RDWR)
            self._changed.notify_all()

    def pull(self, sink: Sink) -> tuple[int, bool]:
        """Read what is here, up to the end of one frame: how many bytes, and whether there may be more.

        Garbage where it is damaged, OSError where the connection is broken.
        """
        total = 0
        if self._frame is None:
            total = self._fill(self._head)
            if self._got < HEAD_BYTES:
                return total, False
            self._frame = self._read_head()
            self._got = 0
        frame, body = self._frame, self._body
        if body is None:
            body = self._body = sink.place(self, *frame)
            if body is None:
                return total, False
        total += self._fill(body, self._head)
        length = len(body)
        if self._got < length:
            return total, False
        self._frame, self._body, self._got = None, None, self._got - length
        is_unchecked = self._is_sure and not self._checksum
        if not is_unchecked and _checksum(frame[0], length, frame[1], body) != self._checksum:
            raise Garbage("the checksum does not match: it was damaged on its way")
        sink.take(self, frame[0], frame[1], body)
        return total, True

    def _fill(self, view: memoryview, beyond: memoryview | None = None) -> int:
        """Read on into ``view``, as far as it is full, and on into what is beyond it; how many bytes came."""
        begun = got = self._got
        size, connection = len(view), self.connection
        try:
            while got < size:
                if isinstance(connection, ssl.SSLSocket):
                    # As ``recv_into`` does, without its checks: it comes in records of 16 KiB.
                    count = cast(int, connection.read(size - got, view[got:]))
                elif beyond is None:
                    count = connection.recv_into(view[got:])
                else:
                    count = connection.recvmsg_into([view[got:], beyond])[0]
                if not count:
                    raise ConnectionResetError("it hung up")
                got += count
        except _WOULD_BLOCK:
            left = size - got
            self._wake_for(min(left - _RECORD, _TOGETHER) if left >= _SURE else 1)
        finally:
            self._got = got
        return got - begun

    def _wake_for(self, count: int) -> None:
        """Let this node sleep until so many bytes are here."""
        if self._woken_for != count:
            self._woken_for = count
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _read_head(self) -> tuple[FrameKind, int, int]:
        kind, length, index, self._checksum = _HEAD.unpack(self._head)
        if kind not in _KINDS or length > LARGE_PIECE_BYTES:
            raise Garbage("this is no frame of a round")
        return _KINDS[kind], index, length
