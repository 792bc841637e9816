"""Who calls: connections to other mailboxes, kept open and used again."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any

from flockstep.backends.real.mailbox.address import read
from flockstep.backends.real.mailbox.transfer import Deadline


class Connections:
    """Idle connections by address; a call takes one, and gives it back."""

    def __init__(self, context: ssl.SSLContext | None, *, connect: float, idle: float) -> None:
        self._context, self._connect, self._longest_idle = context, connect, idle
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[socket.socket, float]]] = defaultdict(list)
        self._busy: set[socket.socket] = set()
        self._closed = False

    def take(self, address: str, name: str, deadline: Deadline) -> socket.socket:
        """A connection that is good as far as can be seen. ``name`` is what the other side's certificate must say."""
        with self._lock:
            if self._closed:
                raise ConnectionError("this mailbox is closed")
            waiting = self._idle[address]
            while waiting:
                connection, since = waiting.pop()
                if not _has_ended(connection) and time.monotonic() - since <= self._longest_idle:
                    self._busy.add(connection)
                    return connection
                connection.close()
        return self._open(address, name, deadline)

    def give_back(self, address: str, connection: socket.socket) -> None:
        """The call is over, and the connection is good."""
        with self._lock:
            self._busy.discard(connection)
            if self._closed:
                connection.close()
                return
            now, waiting = time.monotonic(), self._idle[address]
            # The oldest are taken last: without this, those of a burst would stay for ever.
            while waiting and now - waiting[0][1] > self._longest_idle:
                waiting.pop(0)[0].close()
            waiting.append((connection, now))

    def forget(self, address: str) -> None:
        """Nobody answers there: close what was kept open."""
        with self._lock:
            for connection, _ in self._idle.pop(address, ()):
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
        ways = socket.getaddrinfo(*read(address), type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in ways[:-1]:
            with suppress(OSError):
                return self._reach(socket.socket(family, kind, protocol), where, name, deadline)
        family, kind, protocol, _, where = ways[-1]
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
