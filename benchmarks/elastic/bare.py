"""The bare row: the bytes of a mean, 2 (n-1)/n of the vector to and fro, by blocking sockets and nothing else.

One connection for each direction of each pair, a thread for each that sends. First each node's chunk goes to whoever
would sum it, then as much comes back to all; nothing is summed or checked.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from flockstep.backends.real.security.keys import Keys, name_of

Tell = Callable[[str, str], None]
Ask = Callable[[str], str]


class Bare:
    """One node's sockets to all others."""

    def __init__(self, name: str, rank: int, nodes: int, host: str, keys: Keys | None, tell: Tell, ask: Ask) -> None:
        self._rank, self._nodes = rank, nodes
        self._peers = [peer for peer in range(nodes) if peer != rank]
        self._out: dict[int, socket.socket] = {}
        self._in: dict[int, socket.socket] = {}
        self._room = torch.empty(0, dtype=torch.uint8)
        self._threads = ThreadPoolExecutor(2 * nodes)
        with socket.create_server((host, 0)) as listener:
            tell(f"{name} {rank}", str(listener.getsockname()[1]))
            hosts = {peer: (ask(f"host {peer}"), int(ask(f"{name} {peer}"))) for peer in self._peers}
            accepting = self._threads.submit(self._accept, listener, keys)
            for peer in self._peers:
                connection = socket.create_connection(hosts[peer])
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if keys is not None:
                    connection = keys.client_context().wrap_socket(connection, server_hostname=name_of(peer))
                connection.sendall(bytes([rank]))
                self._out[peer] = connection
            accepting.result()

    def _accept(self, listener: socket.socket, keys: Keys | None) -> None:
        for _ in self._peers:
            connection, _ = listener.accept()
            if keys is not None:
                connection = keys.server_context().wrap_socket(connection, server_side=True)
            self._in[connection.recv(1)[0]] = connection

    def mean(self, v: Tensor) -> None:
        """Bring the bytes of one there and back."""
        data = v.view(torch.uint8)
        if len(self._room) != len(data):
            self._room = torch.empty(len(data), dtype=torch.uint8)
        ends = [j * len(data) // self._nodes for j in range(self._nodes + 1)]
        chunks = [slice(*ends[j : j + 2]) for j in range(self._nodes)]
        mine, room = chunks[self._rank], self._room.numpy().data
        theirs = {peer: data[chunks[peer]].numpy().data for peer in self._peers}
        self._move(theirs, dict.fromkeys(self._peers, room[mine]))
        self._move(
            {peer: data[mine].numpy().data for peer in self._peers}, {peer: room[chunks[peer]] for peer in self._peers}
        )

    def _move(self, give: dict[int, memoryview], take: dict[int, memoryview]) -> None:
        doing = [self._threads.submit(self._out[peer].sendall, data) for peer, data in give.items()]
        doing += [self._threads.submit(_fill, self._in[peer], room) for peer, room in list(take.items())[1:]]
        # This thread reads, too: to wake another one takes time.
        first, room = next(iter(take.items()))
        _fill(self._in[first], room)
        for one in doing:
            one.result()

    def close(self) -> None:
        """Hang up."""
        for connection in (*self._out.values(), *self._in.values()):
            connection.close()
        self._threads.shutdown()


def _fill(connection: socket.socket, view: memoryview) -> None:
    got = 0
    while got < len(view):
        count = connection.recv_into(view[got:])
        if not count:
            raise ConnectionError("the other end has hung up")
        got += count
