"""The heads of HTTP/1.1 requests and responses; h11 writes and reads them, strictly. Bodies go past it.

One of these per exchange: bodies of hundreds of megabytes must not be copied through a parser.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

import h11

from flockstep.backends.real.mailbox.transfer import Deadline
from flockstep.backends.real.mailbox.wire import CHECKSUM_BYTES, FRAME_BYTES, LONGEST, Refused

PATH = b"/message"
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
