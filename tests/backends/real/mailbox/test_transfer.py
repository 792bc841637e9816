"""Bodies over real sockets: all that came is read, and a reader that waits for much at once waits for no more."""

import os
import socket
import threading

import pytest

from flockstep.backends.real.mailbox.http import Deadline, Reader

LENGTHS = [0, 1, 32 * 1024 - 1, 32 * 1024, 32 * 1024 + 1, 300_000]


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    with left, right:
        yield left, right


def least(connection):
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def wakes(connection, length):
    """How often a reader is woken for a body, and the body."""

    class Counted:
        count = 0

        def recv_into(self, view):
            self.count += 1
            return connection.recv_into(view)

        def __getattr__(self, name):
            return getattr(connection, name)

    counted = Counted()
    data = Reader(counted, b"", Deadline(60)).read(length)
    return counted.count, data


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("first", [0, 1, 1000])
def test_all_of_a_body_and_nothing_of_the_next(ends, length, first):
    said = os.urandom(length + 17)
    first = min(first, length)
    sender = threading.Thread(target=ends[0].sendall, args=(said[first:],))
    sender.start()
    assert Reader(ends[1], said[:first], Deadline(60)).read(length) == said[:length]
    assert least(ends[1]) == 1
    # What follows is short: whoever waits for much would wait for ever.
    assert ends[1].recv(17, socket.MSG_WAITALL) == said[length:]
    sender.join()


def test_small_packets_wake_it_seldom(ends):
    said = os.urandom(320 * 1024)
    ends[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def trickle():
        for at in range(0, len(said), 512):
            ends[0].sendall(said[at : at + 512])

    sender = threading.Thread(target=trickle)
    sender.start()
    count, data = wakes(ends[1], len(said))
    sender.join()
    assert data == said
    # Ten times 32 KiB, and the last piece as it comes.
    assert count <= 10 + 64


@pytest.mark.parametrize("said", [0, 1, 100_000])
def test_a_peer_that_ends_early_ends_the_wait(ends, said):
    ends[0].sendall(bytes(said))
    ends[0].close()
    with pytest.raises(ConnectionResetError, match="in the middle"):
        Reader(ends[1], b"", Deadline(60)).read(200_000)


def test_a_peer_that_falls_silent_is_given_up(ends):
    ends[0].sendall(bytes(1000))
    with pytest.raises(TimeoutError):
        Reader(ends[1], b"", Deadline(0.2)).read(200_000)
