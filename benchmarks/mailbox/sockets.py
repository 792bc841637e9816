"""The bare row: one blocking socket, the whole body in one ``sendall``, and ``recv_into`` memory that is there already.

With TLS, the keys, the protocol and the checks are those of the mailbox.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import torch
from torch import Tensor

from benchmarks.mailbox.ways import BODY_BYTES, CLIENT, PULL, REQUEST_BYTES, SERVER, Place, request
from flockstep.backends.real.security.keys import Keys, name_of


def serve(place: Place, body: Tensor, *, tls: bool) -> str:
    """Listen; a thread for each who comes."""
    listener = socket.create_server((place.host, 0))
    context = Keys.find(place.folder, SERVER).server_context() if tls else None

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            _hurry(connection)
            secured = context.wrap_socket(connection, server_side=True) if context else connection
            threading.Thread(target=_answer, args=(secured, body.numpy().data), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"{place.host}:{listener.getsockname()[1]}"


def _answer(connection: socket.socket, body: memoryview) -> None:
    wanted = memoryview(bytearray(REQUEST_BYTES))
    # Whoever has what it wanted hangs up.
    with connection, suppress(ConnectionError):
        while True:
            _fill(connection, wanted)
            connection.sendall(body if wanted[0] == PULL else wanted)


class BareCaller:
    """The other end."""

    def __init__(self, place: Place, line: str, *, tls: bool) -> None:
        host, _, port = line.rpartition(":")
        connection = socket.create_connection((host, int(port)))
        _hurry(connection)
        if tls:
            context = Keys.find(place.folder, CLIENT).client_context()
            connection = context.wrap_socket(connection, server_hostname=name_of(SERVER))
        self._connection = connection
        self._body = torch.empty(BODY_BYTES, dtype=torch.uint8)
        self._echo = torch.empty(REQUEST_BYTES, dtype=torch.uint8)
        self._pull = request(PULL).numpy().data

    def pull(self) -> Tensor:
        """The body."""
        self._connection.sendall(self._pull)
        _fill(self._connection, self._body.numpy().data)
        return self._body

    def echo(self, request: Tensor) -> Tensor:
        """The same 1 kB."""
        self._connection.sendall(request.numpy().data)
        _fill(self._connection, self._echo.numpy().data)
        return self._echo

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def _fill(connection: socket.socket, view: memoryview) -> None:
    got = 0
    while got < len(view):
        count = connection.recv_into(view[got:])
        if not count:
            raise ConnectionError("the other end has hung up")
        got += count


def _hurry(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
