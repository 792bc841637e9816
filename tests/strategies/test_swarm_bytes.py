"""What an exchange costs where it counts: bytes at the sockets of real processes, as the kernel counts them."""

import itertools
import os
import socket
import statistics
import struct
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import flockstep as fs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and TCP_INFO"),
]
_ACKED_AND_RECEIVED = 120
"""Where Linux's struct tcp_info has tcpi_bytes_acked and tcpi_bytes_received."""


def asked_bytes(port):
    """Bytes sent and received by this process's own TCP connections, leaving out those it accepted at ``port``."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            copy = os.dup(int(entry.name))
        except OSError:
            # The folder's own, closed by now.
            continue
        try:
            connection = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with connection:
            try:
                here, _ = connection.getsockname()[1], connection.getpeername()
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            except (OSError, IndexError):
                continue
            if here != port:
                total += sum(struct.unpack_from("<QQ", told, _ACKED_AND_RECEIVED))
    return total


def train(codec, exchanges):
    torch.manual_seed(0)
    model = nn.Linear(600, 500)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(16, 600), torch.randn(16, 500)
    with fs.join(model, optimizer, fs.Swarm(period=2, codec=codec)) as node:
        port = int(node.address.rpartition(":")[2])

        def exchange():
            """Steps until the next exchange is over; no other of this node is under way then."""
            before = node.tally.counts.get("exchanges", 0)
            while node.tally.counts.get("exchanges", 0) == before:
                optimizer.zero_grad()
                ((model(x + 0.01 * torch.randn_like(x)) - y) ** 2).mean().backward()
                optimizer.step()
            return asked_bytes(port)

        # The first exchanges, exact because nobody knows the distance yet, are not what is asked about.
        seen = [exchange() for _ in range(5 + exchanges)][4:]
        return statistics.median(after - before for before, after in itertools.pairwise(seen))


def per_exchange(codec):
    trace = fs.launch(partial(train, codec, 20), nodes=2, timeout="60 s")
    return max(trace.results.values())


def test_few_bits_are_few_bytes_at_the_socket():
    """Of the median exchange: one in which a block had to be repaired sends more, and is counted in the report."""
    # There and back, and the heads.
    exact = per_exchange(fs.codecs.Raw())
    assert exact == pytest.approx(2 * 4 * (600 * 500 + 500), rel=0.05)
    assert per_exchange(fs.codecs.Modular(bits=8)) <= 0.27 * exact
    assert per_exchange(fs.codecs.Modular(bits=4)) <= 0.145 * exact
