"""The calling side: connections to other mailboxes, kept open and used again, and one call over one of them.

A call is a frame and its data there, a frame and its data back.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch

from flockstep.backends.real.mailbox.http import PATH, STREAM_PATH, Deadline, Exchange, Head, Reader, send
from flockstep.backends.real.mailbox.memory import Buffers, Staging
from flockstep.backends.real.mailbox.wire import CHECKSUM_BYTES, FRAME_BYTES, Frame, Refused
from flockstep.backends.real.membership.member_line import parse_address
from flockstep.message import Message


class Connections:
    """Idle connections, by address and by whose certificate was shown there; a call takes one, and gives it back."""

    def __init__(self, context: ssl.SSLContext | None, *, connect: float, idle: float) -> None:
        self._context, self._connect, self._longest_idle = context, connect, idle
        self._lock = threading.Lock()
        # By name too: a connection that was checked for one node must not answer for another at the same address.
        self._idle: dict[tuple[str, str], list[tuple[socket.socket, float]]] = defaultdict(list)
        self._busy: set[socket.socket] = set()
        self._closed = False

    def take(self, address: str, name: str, deadline: Deadline) -> socket.socket:
        """A connection that is good as far as can be seen. ``name`` is what the other side's certificate must say."""
        with self._lock:
            if self._closed:
                raise ConnectionError("this mailbox is closed")
            waiting = self._idle[address, name]
            while waiting:
                connection, since = waiting.pop()
                if not _has_ended(connection) and time.monotonic() - since <= self._longest_idle:
                    self._busy.add(connection)
                    return connection
                connection.close()
        return self._open(address, name, deadline)

    def give_back(self, address: str, name: str, connection: socket.socket) -> None:
        """The call is over, and the connection is good."""
        with self._lock:
            self._busy.discard(connection)
            if self._closed:
                connection.close()
                return
            now, waiting = time.monotonic(), self._idle[address, name]
            # The oldest are taken last: without this, those of a burst would stay for ever.
            while waiting and now - waiting[0][1] > self._longest_idle:
                waiting.pop(0)[0].close()
            waiting.append((connection, now))

    def forget(self, address: str) -> None:
        """Nothing answers there: close what was kept open."""
        with self._lock:
            for key in [key for key in self._idle if key[0] == address]:
                for connection, _ in self._idle.pop(key):
                    connection.close()

    def drop(self, connection: socket.socket) -> None:
        """The call failed: nobody knows what would come next on it."""
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def close(self) -> None:
        """End all, those in use too."""
        with self._lock:
            self._closed = True
            for waiting in self._idle.values():
                for connection, _ in waiting:
                    connection.close()
            self._idle.clear()
            for connection in self._busy:
                try:
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
                except OSError:
                    continue

    def _open(self, address: str, name: str, deadline: Deadline) -> socket.socket:
        routes = socket.getaddrinfo(*parse_address(address), type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in routes[:-1]:
            with suppress(OSError):
                return self._reach(socket.socket(family, kind, protocol), where, name, deadline)
        family, kind, protocol, _, where = routes[-1]
        return self._reach(socket.socket(family, kind, protocol), where, name, deadline)

    def _reach(self, connection: socket.socket, where: Any, name: str, deadline: Deadline) -> socket.socket:
        # Before it connects, so that closing the mailbox ends that, too.
        self._use(connection)
        try:
            connection.settimeout(min(self._connect, deadline.left()))
            connection.connect(where)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is None:
                return connection
            # It takes the plain one's place before it shakes hands: closing the mailbox ends that as well.
            plain = connection
            connection = self._context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)
            self._use(connection, instead_of=plain)
            connection.do_handshake()
        except BaseException:
            self.drop(connection)
            raise
        return connection

    def _use(self, connection: socket.socket, instead_of: socket.socket | None = None) -> None:
        with self._lock:
            self._busy.discard(instead_of)
            if not self._closed:
                self._busy.add(connection)
                return
        connection.close()
        raise ConnectionError("this mailbox is closed")


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other side has hung up: nothing else can come while nothing is asked."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


_MOST_REASON = 2000


class Calls:
    """Talks over connections; knows nothing of who is meant."""

    def __init__(self, connections: Connections, buffers: Buffers, staging: Staging) -> None:
        self._connections, self._buffers, self._staging = connections, buffers, staging
        self._shown: WeakKeyDictionary[socket.socket, set[str]] = WeakKeyDictionary()
        """The certificates that have gone over a connection."""

    def call(
        self,
        address: str,
        name: str,
        frame: Frame,
        message: Message,
        gossip: Callable[[set[str]], str],
        deadline: Deadline,
    ) -> tuple[Frame, Message, str]:
        """The reply, and whom the other side knows of; Refused if it said no, OSError if it said nothing."""
        connection, replied, reply, peers = self._talk(address, name, frame, message, gossip, deadline, PATH)
        self._connections.give_back(address, name, connection)
        return replied, reply, peers

    def open(
        self,
        address: str,
        name: str,
        frame: Frame,
        message: Message,
        gossip: Callable[[set[str]], str],
        deadline: Deadline,
    ) -> tuple[Frame, socket.socket, str]:
        """The same, after which the connection is the caller's, to write to; ``end`` takes it back."""
        connection, replied, _, peers = self._talk(address, name, frame, message, gossip, deadline, STREAM_PATH)
        return replied, connection, peers

    def end(self, connection: socket.socket) -> None:
        """Close what ``open`` gave."""
        self._connections.drop(connection)

    def _talk(
        self,
        address: str,
        name: str,
        frame: Frame,
        message: Message,
        gossip: Callable[[set[str]], str],
        deadline: Deadline,
        target: bytes,
    ) -> tuple[socket.socket, Frame, Message, str]:
        data = self._staging.view(message.data)
        packed = frame.pack(message)
        connection = self._connections.take(address, name, deadline)
        exchange = Exchange(connection, client=True)
        # Once only, whatever happens: the other side may have done what it was asked before it was lost.
        try:
            told = gossip(self._shown.setdefault(connection, set()))
            head = exchange.request(frame.body_bytes, told, target)
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
        return connection, replied, reply, answer.peers

    def _refusal(self, exchange: Exchange, deadline: Deadline) -> None:
        try:
            answer = exchange.read(deadline)
        except OSError:
            return
        raise _reason(answer, Reader(exchange.connection, answer.rest, deadline))


def _reason(answer: Head, reader: Reader) -> Refused:
    text = reader.read(min(answer.length, _MOST_REASON)).decode(errors="replace")
    return Refused(text or f"HTTP status {answer.status}", answer.status, peers=answer.peers)


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
