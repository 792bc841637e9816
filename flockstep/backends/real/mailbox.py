"""Messages between processes over TCP: one-sided ask and answer, two-sided send and receive.

Binds to loopback only. A frame is a fixed header (kind, rank, topic), the message's own header, then its raw bytes.
Every accepted connection has a thread; a handler runs in that thread, under the node's one handler lock.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import defaultdict, deque
from queue import SimpleQueue
from typing import Protocol

import torch

from flockstep.errors import LostPeer
from flockstep.message import HEADER_BYTES, Message
from flockstep.node import Handler

_FRAME = struct.Struct("<4sBI55s")
_MAGIC = b"flk1"
_ASK, _SEND, _REPLY, _FAILED = range(4)
_LONGEST = 2**36


class Directory(Protocol):
    """Where nodes publish their addresses: the c10d store."""

    def publish(self, rank: int, address: str) -> None:
        """Say where a node's mailbox is."""

    def look_up(self, rank: int, deadline: float) -> str:
        """Where a node's mailbox is; waits until it has one. TimeoutError at the deadline."""


class Mailbox:
    """One node's mailbox: a listening socket, and a connection to each peer it talks to."""

    def __init__(self, rank: int, directory: Directory, timeout: float) -> None:
        self._rank, self._directory, self._timeout = rank, directory, timeout
        self._changed = threading.Condition()
        self._handling = threading.Lock()
        self._handlers: dict[str, Handler] = {}
        self._inbox: dict[int, deque[Message]] = defaultdict(deque)
        self._outboxes: dict[int, SimpleQueue[Message]] = {}
        self._idle: dict[int, list[socket.socket]] = defaultdict(list)
        self._lost: dict[int, str] = {}
        self._server = socket.create_server(("127.0.0.1", 0))
        directory.publish(rank, f"127.0.0.1:{self._server.getsockname()[1]}")
        _start(self._accept)

    def answer(self, topic: str, handler: Handler) -> None:
        """Let a handler answer from now on."""
        if len(topic.encode()) > 55:
            raise ValueError(f"a topic has at most 55 bytes, got {topic!r}")
        with self._changed:
            self._handlers[topic] = handler
            self._changed.notify_all()

    def ask(self, peer: int, topic: str, message: Message) -> Message:
        """Send a question over an idle or new connection; block until its reply is here."""
        deadline = time.monotonic() + self._timeout
        try:
            connection = self._connection(peer, deadline)
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            _write(connection, _ASK, self._rank, topic, message)
            kind, _, text, reply = _read(connection)
        except (OSError, TimeoutError, ValueError) as error:
            raise LostPeer(f"node {self._rank} lost node {peer} in ask({topic!r}): {error}", rank=self._rank) from error
        self._idle[peer].append(connection)
        if kind == _FAILED:
            raise LostPeer(f"node {self._rank} lost node {peer} in ask({topic!r}): it failed, {text}", rank=self._rank)
        return reply

    def send(self, peer: int, message: Message) -> None:
        """Queue a message; one thread per peer writes them in order."""
        if peer not in self._outboxes:
            self._outboxes[peer] = SimpleQueue()
            _start(self._post, peer)
        self._outboxes[peer].put(message)

    def receive(self, peer: int) -> Message:
        """Block until the next message of a peer is here."""
        with self._changed:
            here = self._changed.wait_for(lambda: self._inbox[peer] or peer in self._lost, self._timeout)
            if self._inbox[peer]:
                return self._inbox[peer].popleft()
        why = self._lost.get(peer, "") if here else f"nothing came in {self._timeout:g} s"
        raise LostPeer(f"node {self._rank} lost node {peer} in receive: {why}", rank=self._rank)

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def _connection(self, peer: int, deadline: float) -> socket.socket:
        if self._idle[peer]:
            return self._idle[peer].pop()
        host, _, port = self._directory.look_up(peer, deadline).rpartition(":")
        connection = socket.create_connection((host, int(port)), max(0.001, deadline - time.monotonic()))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _post(self, peer: int) -> None:
        connection = None
        while True:
            message = self._outboxes[peer].get()
            try:
                if connection is None:
                    connection = self._connection(peer, time.monotonic() + self._timeout)
                _write(connection, _SEND, self._rank, "", message)
            except (OSError, TimeoutError) as error:
                self._lose(peer, str(error))
                return

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        sender = None
        try:
            while True:
                kind, peer, topic, message = _read(connection)
                if kind == _SEND:
                    sender = peer
                    with self._changed:
                        self._inbox[peer].append(message)
                        self._changed.notify_all()
                else:
                    self._reply(connection, peer, topic, message)
        except (OSError, ValueError) as error:
            if sender is not None:
                self._lose(sender, str(error))
        finally:
            connection.close()

    def _reply(self, connection: socket.socket, peer: int, topic: str, message: Message) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: topic in self._handlers, self._timeout):
                raise OSError(f"nobody answers {topic!r}")
            handler = self._handlers[topic]
        try:
            with self._handling:
                reply = handler(peer, message)
        except Exception as error:
            _write(connection, _FAILED, self._rank, f"{type(error).__name__}: {error}"[:55], message)
        else:
            _write(connection, _REPLY, self._rank, topic, reply)

    def _lose(self, peer: int, why: str) -> None:
        with self._changed:
            self._lost[peer] = why
            self._changed.notify_all()


def _start(target: object, *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]


def _write(connection: socket.socket, kind: int, rank: int, topic: str, message: Message) -> None:
    name = topic.encode()[:55]
    connection.sendall(_FRAME.pack(_MAGIC, kind, rank, name) + message.header())
    data = message.data.cpu().contiguous()
    if data.numel():
        connection.sendall(data.numpy().data)


def _read(connection: socket.socket) -> tuple[int, int, str, Message]:
    start = _exactly(connection, _FRAME.size + HEADER_BYTES)
    magic, kind, rank, topic = _FRAME.unpack_from(start)
    codec, shape, dtype, length = Message.read_header(bytes(start[_FRAME.size :]))
    if magic != _MAGIC or length > _LONGEST:
        raise ValueError("not a message of this protocol")
    data = (
        torch.frombuffer(_exactly(connection, length), dtype=torch.uint8)
        if length
        else torch.empty(0, dtype=torch.uint8)
    )
    return kind, rank, topic.rstrip(b"\0").decode(), Message(data, codec, shape, dtype)


def _exactly(connection: socket.socket, count: int) -> bytearray:
    buffer = bytearray(count)
    view, got = memoryview(buffer), 0
    while got < count:
        read = connection.recv_into(view[got:])
        if read == 0:
            raise ConnectionResetError("the peer closed the connection")
        got += read
    return buffer
