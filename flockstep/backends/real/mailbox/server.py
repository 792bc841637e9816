"""Who listens: a thread accepts, each connection has a thread of its own that blocks, and none outlives the end.

Whoever has not shown yet that it is of the run, by a certificate or by a first message, is a stranger. Few of them are
let in at once, and the one who has been there longest makes room: however many connect, nodes keep theirs. But each has
a moment's time, so that many nodes that come at once do not push each other out.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_BACKLOG = 128
_MOST_CONNECTIONS = 4096
_MOST_STRANGERS = 128
_MOMENT = 0.5
_BREATH = 0.1
# What threads may take to end, once nothing comes on their connections any more.
_PATIENCE = 5.0


class Server:
    """Has an address from the beginning, and from ``start`` on hands every connection, once secured, to ``serve``."""

    def __init__(self, host: str, *, context: ssl.SSLContext | None, handshake: float, port: int = 0) -> None:
        self._context, self._handshake = context, handshake
        self._serve: Callable[[socket.socket], None]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Condition()
        """Notified when there is a stranger less."""
        self._open: dict[threading.Thread, socket.socket] = {}
        self._ending: list[threading.Thread] = []
        # In the order in which they came, and when that was.
        self._strangers: dict[threading.Thread, float] = {}
        self._closed = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="mailbox", daemon=True)

    def start(self, serve: Callable[[socket.socket], None]) -> None:
        """Whoever has called meanwhile has waited."""
        self._serve = serve
        self._acceptor.start()

    def know(self) -> None:
        """Whoever is on the connection that this thread attends to is of the run."""
        with self._lock:
            self._strangers.pop(threading.current_thread(), None)
            self._lock.notify_all()

    def close(self) -> list[threading.Thread]:
        """Stop listening, end every connection, and wait until their threads are gone; those that do not end."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            threads, ending = dict(self._open), self._ending
        for connection in threads.values():
            _hang_up(connection)
        ours = [thread for thread in (self._acceptor, *threads, *ending) if thread is not threading.current_thread()]
        end = time.monotonic() + _PATIENCE
        for thread in ours:
            thread.join(max(0.0, end - time.monotonic()))
        return [thread for thread in ours if thread.is_alive()]

    def _accept(self) -> None:
        while not self._closed.is_set():
            self._make_room()
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Closed; or out of file descriptors, which may pass.
                self._closed.wait(_BREATH)
                continue
            thread = threading.Thread(target=self._attend, args=(connection,), name="mailbox connection", daemon=True)
            with self._lock:
                known = len(self._open) - len(self._strangers)
                welcome = not self._closed.is_set() and known < _MOST_CONNECTIONS
                if welcome:
                    self._open[thread] = connection
                    self._strangers[thread] = time.monotonic()
            if not welcome:
                connection.close()
                continue
            try:
                thread.start()
            except RuntimeError:
                # Out of threads, which may pass too.
                with self._lock:
                    del self._open[thread]
                    self._strangers.pop(thread, None)
                connection.close()
                self._closed.wait(_BREATH)

    def _make_room(self) -> None:
        """Where there are too many strangers, wait until one has gone: if need be the first, whose moment is over."""
        with self._lock:
            while True:
                if len(self._strangers) < _MOST_STRANGERS or self._closed.is_set():
                    return
                first, since = next(iter(self._strangers.items()))
                left = since + _MOMENT - time.monotonic()
                if left <= 0:
                    break
                self._lock.wait(left)
            del self._strangers[first]
            _hang_up(self._open[first])
        # Else connections would come faster than they go.
        first.join(_PATIENCE)

    def _attend(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._serve(self._secured(connection))
        except OSError:
            # It hung up, or did not show the right certificate: nothing to serve.
            pass
        finally:
            with self._lock:
                # The secured one, if it came to that: it took the plain one's place.
                current = self._open.pop(threading.current_thread())
                # Whoever closes the server now waits for this thread as for any other.
                self._ending = [*(thread for thread in self._ending if thread.is_alive()), threading.current_thread()]
                self._strangers.pop(threading.current_thread(), None)
                self._lock.notify_all()
            current.close()

    def _secured(self, connection: socket.socket) -> socket.socket:
        if self._context is None:
            return connection
        connection.settimeout(self._handshake)
        # Known before it shakes hands, so that close() can end that as well.
        secured = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._open[threading.current_thread()] = secured
            if self._closed.is_set() or threading.current_thread() not in self._strangers:
                raise ConnectionAbortedError("closed while it was secured")
        secured.do_handshake()
        self.know()
        return secured


def _hang_up(connection: socket.socket) -> None:
    """Wake whoever reads or writes there; the thread itself closes it."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
