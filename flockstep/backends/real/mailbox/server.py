"""Who listens: a thread accepts, each connection has a thread of its own that blocks, and none outlives the end."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

_BACKLOG = 128
_MOST_CONNECTIONS = 4096
_BREATH = 0.1


class Server:
    """Has an address from the beginning, and from ``start`` on hands every connection, once secured, to ``serve``."""

    def __init__(self, host: str, *, context: ssl.SSLContext | None, handshake: float, port: int = 0) -> None:
        self._context, self._handshake = context, handshake
        self._serve: Callable[[socket.socket], None]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, socket.socket] = {}
        self._closed = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="mailbox", daemon=True)

    def start(self, serve: Callable[[socket.socket], None]) -> None:
        """Whoever has called meanwhile has waited."""
        self._serve = serve
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening, end every connection, and wait until their threads are gone."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            threads = dict(self._open)
        for connection in threads.values():
            # Wakes whoever reads or writes there; the thread itself closes it.
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        for thread in (self._acceptor, *threads):
            if thread is not threading.current_thread():
                thread.join()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Closed; or out of file descriptors, which may pass.
                self._closed.wait(_BREATH)
                continue
            thread = threading.Thread(target=self._attend, args=(connection,), name="mailbox connection", daemon=True)
            with self._lock:
                welcome = not self._closed.is_set() and len(self._open) < _MOST_CONNECTIONS
                if welcome:
                    self._open[thread] = connection
            if not welcome:
                connection.close()
                continue
            try:
                thread.start()
            except RuntimeError:
                # Out of threads, which may pass too.
                with self._lock:
                    del self._open[thread]
                connection.close()
                self._closed.wait(_BREATH)

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
            current.close()

    def _secured(self, connection: socket.socket) -> socket.socket:
        if self._context is None:
            return connection
        connection.settimeout(self._handshake)
        # Known before it shakes hands, so that close() can end that as well.
        secured = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._open[threading.current_thread()] = secured
            if self._closed.is_set():
                raise ConnectionAbortedError("closed while it was secured")
        secured.do_handshake()
        return secured
