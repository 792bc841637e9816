"""What an exchange costs where it counts: bytes at the sockets of real processes, as the kernel counts them."""

import os
import socket
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
            connection = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
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
    with fs.join(model, optimizer, fs.Swarm(local_steps=2, codec=codec)) as node:
        port = int(node.address.rpartition(":")[2])

        def step_until(count):
            while node.tally.counts.get("exchanges", 0) < count:
                optimizer.zero_grad()
                ((model(x + 0.01 * torch.randn_like(x)) - y) ** 2).mean().backward()
                optimizer.step()
            return node.tally.counts["exchanges"], asked_bytes(port)

        # The first exchanges, exact because nobody knows the distance yet, are not what is asked about.
        count, nbytes = step_until(5)
        then, more = step_until(5 + exchanges)
        return (more - nbytes) / (then - count), node.report().counts


def per_exchange(codec):
    trace = fs.launch(partial(train, codec, 20), nodes=2, timeout="60 s")
    return sum(nbytes for nbytes, _ in trace.results.values()) / 2


def test_few_bits_are_few_bytes_at_the_socket():
    # There and back, and the heads.
    exact = per_exchange(fs.Raw())
    assert exact == pytest.approx(2 * 4 * (600 * 500 + 500), rel=0.05)
    assert per_exchange(fs.Modular(bits=8)) <= 0.27 * exact
    assert per_exchange(fs.Modular(bits=4)) <= 0.145 * exact
