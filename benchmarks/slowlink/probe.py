"""What a link really gives: bytes per second and one-way delay between nodes 0 and 1, by plain sockets.

Run on every node of a laboratory; node 1 sends back what it found, node 0 prints it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from pathlib import Path

_PORT = 29400
_CHUNK = 2**16
_PINGS = 50
_ANSWER = 32
_PATIENCE = 30.0


def main() -> None:
    """Node 0 sends to node 1; the others have nothing to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nbytes", type=int, required=True, help="how much to send")
    nbytes = parser.parse_args().nbytes
    rank = int(os.environ["RANK"])
    told: dict[str, float | str] = {}
    if rank == 1:
        _receive(nbytes)
    elif rank == 0:
        # The one address known to all is node 0's; node 1 is the one after it.
        network, _, last = os.environ["MASTER_ADDR"].rpartition(".")
        told = _send(f"{network}.{int(last) + 1}", nbytes)
    print(json.dumps(told))


def _send(address: str, nbytes: int) -> dict[str, float | str]:
    with _connect(address) as wire:
        delays = []
        for _ in range(_PINGS):
            began = time.perf_counter()
            wire.sendall(b".")
            _exactly(wire, 1)
            delays.append((time.perf_counter() - began) / 2)
        chunk = bytes(_CHUNK)
        for begin in range(0, nbytes, _CHUNK):
            wire.sendall(chunk[: min(_CHUNK, nbytes - begin)])
        goodput = float(wire.recv(_ANSWER, socket.MSG_WAITALL))
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return {"bytes_per_second": goodput, "latency": statistics.median(delays), "congestion_control": control}


def _receive(nbytes: int) -> None:
    with socket.create_server(("", _PORT)) as server:
        server.settimeout(_PATIENCE)
        wire, _ = server.accept()
    with wire:
        wire.settimeout(_PATIENCE)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PINGS):
            wire.sendall(_exactly(wire, 1))
        first = _exactly(wire, 1)
        began = time.perf_counter()
        _exactly(wire, nbytes - len(first))
        rate = (nbytes - len(first)) / (time.perf_counter() - began)
        wire.sendall(f"{rate:{_ANSWER}.1f}".encode())


def _exactly(wire: socket.socket, count: int) -> bytes:
    """So many bytes; only the last of them are given back, since many are read to be counted."""
    part = b""
    while count > 0:
        part = wire.recv(min(count, _CHUNK))
        if not part:
            raise ConnectionError("the other end has hung up")
        count -= len(part)
    return part


def _connect(address: str) -> socket.socket:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            wire = socket.create_connection((address, _PORT), timeout=_PATIENCE)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return wire


if __name__ == "__main__":
    main()
