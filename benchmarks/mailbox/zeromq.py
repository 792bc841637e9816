"""A message library's way: pyzmq's REQ and REP, nothing copied on this side of it."""

from __future__ import annotations

import threading

import torch
import zmq
from torch import Tensor

from benchmarks.mailbox.ways import PULL, Place, request


def serve(place: Place, body: Tensor) -> str:
    """Listen."""
    listener: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REP)
    port = listener.bind_to_random_port(f"tcp://{place.host}")

    def answer() -> None:
        prepared = body.numpy().data
        while True:
            wanted = listener.recv(copy=False).buffer
            listener.send(prepared if wanted[0] == PULL else wanted, copy=False)

    threading.Thread(target=answer, daemon=True).start()
    return f"tcp://{place.host}:{port}"


class QueueCaller:
    """The side that asks."""

    def __init__(self, place: Place, line: str) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.REQ)
        self._socket.connect(line)
        self._pull = request(PULL)

    def pull(self) -> Tensor:
        """The body, in memory that is the library's."""
        return self.echo(self._pull)

    def echo(self, request: Tensor) -> Tensor:
        """A request, and what comes back."""
        self._socket.send(request.numpy().data, copy=False)
        return torch.frombuffer(self._socket.recv(copy=False).buffer, dtype=torch.uint8)

    def close(self) -> None:
        """Hang up."""
        self._context.destroy(linger=0)
