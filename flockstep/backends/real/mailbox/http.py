"""HTTP/1.1 on the wire: heads, which h11 writes and reads strictly, and bodies, straight from and into memory.

A body has a checksum on the way.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import NamedTuple

import h11
from xxhash import xxh3_64

from flockstep.backends.real.mailbox.wire import CHECKSUM_BYTES, FRAME_BYTES, LONGEST, Refused

PATH = b"/message"
STREAM_PATH = b"/stream"
PEERS_HEADER = b"flockstep-peers"
_MOST_HEAD = 16 * 1024
# Little more than a head: what follows it is copied once, and should be short.
_GULP = 4096
_LONGEST_BODY = FRAME_BYTES + LONGEST + CHECKSUM_BYTES


class Head(NamedTuple):
    """What stood in a head, and what came with it of the body."""

    target: bytes
    """Of a request: method and path, such as ``POST /message``. Empty for a response."""
    status: int
    """Of a response. 0 for a request."""
    length: int
    peers: str
    rest: bytes


class ClosedEarly(ConnectionError):
    """The other side closed the connection between two exchanges: nothing was lost but the connection."""


class Exchange:
    """One request and its response, seen from one of the two sides."""

    def __init__(self, connection: socket.socket, *, client: bool) -> None:
        self.connection = connection
        self.last = False
        """Whether the client wants no other exchange on this connection."""
        self._h11 = h11.Connection(h11.CLIENT if client else h11.SERVER, max_incomplete_event_size=_MOST_HEAD)

    def request(self, length: int, peers: str, target: bytes = PATH, method: bytes = b"POST") -> bytes:
        """The head of a request."""
        headers = [(b"host", b"flockstep"), (b"content-length", b"%d" % length), (PEERS_HEADER, peers.encode())]
        return self._h11.send(h11.Request(method=method, target=target, headers=headers)) or b""

    def response(self, status: int, length: int, peers: str, *, close: bool = False, kind: bytes = b"") -> bytes:
        """The head of a response; ``kind`` is the type of its content, for those who are not nodes."""
        headers = [(b"content-length", b"%d" % length), (PEERS_HEADER, peers.encode())]
        if kind:
            headers.append((b"content-type", kind))
        if close:
            headers.append((b"connection", b"close"))
        return self._h11.send(h11.Response(status_code=status, headers=headers)) or b""

    def read(self, deadline: Deadline) -> Head:
        """The other side's head; ClosedEarly if it closed without a word, Refused if it makes no sense."""
        anything = False
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise Refused(f"this is not HTTP as it should be: {error}", error.error_status_hint) from None
            if event is h11.NEED_DATA:
                self.connection.settimeout(deadline.left())
                data = self.connection.recv(_GULP)
                if not data:
                    raise ConnectionResetError("the peer hung up") if anything else ClosedEarly("the peer hung up")
                anything = True
                self._h11.receive_data(data)
            elif isinstance(event, h11.Request):
                tokens = [value.lower() for name, value in event.headers if name == b"connection"]
                self.last = event.http_version < b"1.1" or any(b"close" in token for token in tokens)
                return self._head(event.method + b" " + event.target, 0, event.headers)
            elif isinstance(event, h11.Response):
                return self._head(b"", event.status_code, event.headers)
            else:
                raise Refused(f"this is not what should come here: {type(event).__name__}")

    def _head(self, target: bytes, status: int, headers: h11._headers.Headers) -> Head:
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in (b"transfer-encoding", b"expect", b"upgrade"):
                raise Refused(f"the header {name.decode()} has no place here", 501)
            found[name] = value
        length = int(found.get(b"content-length", b"0"))
        if length > _LONGEST_BODY:
            raise Refused(f"a body of {length} bytes is too long", 413)
        try:
            peers = found.get(PEERS_HEADER, b"").decode("ascii")
        except UnicodeDecodeError:
            raise Refused("the list of peers is not ASCII") from None
        rest, _ = self._h11.trailing_data
        if len(rest) > length:
            raise Refused("more came than the head has said")
        return Head(target, status, length, peers, rest)


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

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._end

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
