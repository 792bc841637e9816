"""Bodies, straight from and into memory, with a checksum on the way.

In pieces that stay in a core's cache between the checksum and the socket: the sum then costs next to nothing. The
interpreter's lock is free while a piece moves.
"""

from __future__ import annotations

import socket
import ssl
import time

from xxhash import xxh3_64

from flockstep.backends.real.mailbox.wire import CHECKSUM_BYTES, Refused

_PIECE = 256 * 1024
# More at once on the way out: every piece waits for room in the socket's buffer, and wakes this thread.
_SENT_PIECE = 1024 * 1024
# Over a slow link bytes come one packet at a time; to be woken for each costs more than the bytes.
_TOGETHER = 32 * 1024
# Up to here one write is cheaper than several.
_SMALL = 64 * 1024


class Deadline:
    """The moment by which something must have happened."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that remain; TimeoutError if none do."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("it took too long")
        return left


def send(connection: socket.socket, head: bytes, frame: bytes, data: memoryview, deadline: Deadline) -> None:
    """Write a head, a frame, its data and the checksum of both."""
    connection.settimeout(deadline.left())
    digest = xxh3_64(frame)
    if len(data) <= _SMALL:
        digest.update(data)
        connection.sendall(b"".join((head, frame, data, digest.digest())))
        return
    connection.sendall(head + frame)
    for begin in range(0, len(data), _SENT_PIECE):
        piece = data[begin : begin + _SENT_PIECE]
        digest.update(piece)
        connection.settimeout(deadline.left())
        connection.sendall(piece)
    connection.sendall(digest.digest())


class Reader:
    """Reads a body: first what came with the head, then from the connection."""

    def __init__(self, connection: socket.socket, first: bytes, deadline: Deadline) -> None:
        self._connection, self._first, self._deadline = connection, memoryview(first), deadline
        self._digest = xxh3_64()
        self._woken_for = 1

    def read(self, count: int) -> bytes:
        """A few bytes."""
        data = bytearray(count)
        self.read_into(memoryview(data))
        return bytes(data)

    def read_into(self, view: memoryview) -> None:
        """Exactly as many bytes as fit."""
        got = min(len(self._first), len(view))
        view[:got] = self._first[:got]
        self._first = self._first[got:]
        self._digest.update(view[:got])
        while got < len(view):
            # Once per piece: TLS hands out 16 KiB at a time, and setting the time costs as much as taking them.
            self._connection.settimeout(self._deadline.left())
            end = min(got + _PIECE, len(view))
            while got < end:
                # One byte at a time must not move the deadline; asking the clock is cheap.
                self._deadline.left()
                self._wake_for(_TOGETHER if len(view) - got >= _TOGETHER else 1)
                count = self._connection.recv_into(view[got:end])
                if count == 0:
                    raise ConnectionResetError("the peer hung up in the middle of a message")
                self._digest.update(view[got : got + count])
                got += count
        self._wake_for(1)

    def _wake_for(self, count: int) -> None:
        """Sleep until so many bytes are here, or none will come any more."""
        # Under TLS it is records that come, and one of them may be all there is.
        if self._woken_for != count and not isinstance(self._connection, ssl.SSLSocket):
            self._woken_for = count
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def verify(self) -> None:
        """Read the checksum; Refused if it is not that of what was read."""
        expected = self._digest.digest()
        if self.read(CHECKSUM_BYTES) != expected:
            raise Refused("the checksum does not match: the message was damaged on its way", 422)
