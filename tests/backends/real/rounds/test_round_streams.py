"""Streams: who may open one, what may come on it, and what is left when they end."""

import socket
import struct
import threading
from contextlib import contextmanager

import pytest
import torch
from crew import SECONDS, aside, expected, in_small_pieces, open_files, outcome, vectors
from hostile import ASK, KNOCK, STREAM, body, connect, head, read_response, speak, stranger
from xxhash import xxh3_64_intdigest

from flockstep.backends.real.rounds.carrier import stream_table
from flockstep.backends.real.rounds.carrier.begin import Begin, Unlike
from flockstep.backends.real.rounds.carrier.carrier import Abandoned, Unreached
from flockstep.backends.real.rounds.carrier.streams import FrameKind, Garbage, Incoming, Outgoing
from flockstep.backends.real.rounds.council.words import Attempt, Key
from flockstep.backends.real.security.keys import name_of
from flockstep.errors import Mismatch

BEGIN, UNLIKE, HEADER, OWN, SUM = 1, 2, 3, 4, 5
KEY = Key("model", 1)


def by_hand(kind, index, data):
    """A frame, written as the page on the wire format says."""
    seed = (kind + (len(data) << 8) + (index << 40)) % 2**64
    return struct.pack("<IIQQ", kind, len(data), index, xxh3_64_intdigest(data, seed)) + data


def begin(v, attempt=(1, 1), ranks=(0, 1), round=1):
    words = Begin.of(Key("model", round), Attempt(*attempt), ranks, f"{tuple(v.shape)} of {v.dtype}")
    return by_hand(BEGIN, 0, words.to_bytes())


class ByHand:
    """Node 1's part in a mean with node 0, written by hand."""

    def __init__(self, crew):
        self.crew, self.opened = crew, []

    def stream(self, data):
        """A stream to node 0 on which this comes."""
        connection = self.crew.ends[1].box.open_stream(0, "model")
        self.opened.append(connection)
        connection.sendall(data)
        return connection

    def mean(self, v, attempt=(1, 1)):
        """Node 0's own part, under way."""
        return aside(self.crew.carriers[0].mean, KEY, Attempt(*attempt), (0, 1), v)

    def hang_up(self):
        for connection in self.opened:
            self.crew.ends[1].box.end_stream(connection)


@pytest.fixture
def hand(crews):
    one = ByHand(crews(2))
    yield one
    one.hang_up()


def has_hung_up(connection):
    connection.settimeout(SECONDS)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


# Who may open one -----------------------------------------------------------------------------------------------------


def opening(path=b"/stream", kind=STREAM, channel=b"model", **fields):
    whole = body(channel, kind=kind, **{"sender": 1, "topic": b"", **fields})
    return head(len(whole), first=b"POST " + path + b" HTTP/1.1") + whole


def test_a_stream_is_opened_by_one_request(crews):
    crew = crews(2)
    with connect(crew.ends[0].box.members.me.address) as connection:
        connection.sendall(opening())
        assert read_response(connection).status == 200
        connection.sendall(b"\xff" * 100)
        waits = aside(crew.carriers[0].mean, KEY, Attempt(1, 1), (0, 1), torch.ones(3))
        assert has_hung_up(connection)
    assert crew.carriers[1].mean(KEY, Attempt(1, 1), (0, 1), torch.ones(3)).equal(outcome(waits))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (opening(run=bytes(16)), 409),
        (opening(sender=0), 409),
        (opening(incarnation=1), 409),
        (opening(kind=ASK), 400),
        (opening(kind=KNOCK), 400),
        (opening(path=b"/message"), 400),
        (opening(path=b"/streams"), 404),
        (opening(channel=b"m" * 5000), 413),
        (opening(channel=b"\xff\xfe"), 400),
        (opening(checksum=bytes(8)), 422),
    ],
)
def test_what_opens_none(request_, status, crews):
    crew = crews(2)
    assert speak(crew.ends[0].box.members.me.address, request_).status == status
    given = vectors(2, 100)
    assert all(result.equal(expected(given)) for result in crew.mean(given))


def test_a_stranger_opens_none(crews, run_keys):
    ours, theirs = run_keys
    crew = crews(2, ours)
    address = crew.ends[0].box.members.me.address
    for home in (None, theirs / "node-0001"):
        with pytest.raises(OSError):
            assert speak(address, opening(), stranger(home), name_of(0)) is None
            # TLS 1.3 tells the client only when it reads on.
            raise OSError
    assert speak(address, opening(), stranger(ours / "node-0002"), name_of(0)).status == 403
    assert not crew.carriers[0]._table.incoming(1, "model")
    given = vectors(2, 100)
    assert all(result.equal(expected(given)) for result in crew.mean(given))


# What may come --------------------------------------------------------------------------------------------------------


def test_written_by_hand_it_is_a_mean(hand, monkeypatch):
    in_small_pieces(monkeypatch)
    a, b = vectors(2, 600)
    both = expected([a, b])
    own, sums = b.numpy().tobytes()[:1200], both.numpy().tobytes()[1200:]
    frames = [by_hand(kind, i, half[i * 1000 :][:1000]) for kind, half in ((OWN, own), (SUM, sums)) for i in (0, 1)]
    waits = hand.mean(a)
    hand.stream(begin(a) + b"".join(frames))
    assert outcome(waits).equal(both)


def test_damaged_data_is_never_taken(hand):
    a, b = vectors(2, 30)
    frame = by_hand(OWN, 0, b.numpy().tobytes())
    for place in (*range(24), 24, 50, len(frame) - 1):
        damaged = bytearray(frame)
        damaged[place] ^= 1 << place % 8
        attempt = (1, place + 1)
        waits = hand.mean(a, attempt)
        hand.stream(begin(a, attempt) + damaged)
        error = outcome(waits)
        assert isinstance(error, Unreached) and error.peer == 1, (place, error)
    waits = hand.mean(a, (1, 100))
    hand.stream(begin(a, (1, 100)) + frame)
    assert outcome(waits).equal(expected([a, b]))


class Kept:
    """Where frames go."""

    def __init__(self):
        self.taken = []

    def place(self, stream, kind, index, length):
        return memoryview(bytearray(length))

    def take(self, stream, kind, index, body):
        self.taken.append((int(kind), index, bytes(body)))


@contextmanager
def connected(host):
    """Both ends of a connection to an address of this machine; from 127.0.0.1, whichever it is."""
    with socket.create_server((host, 0)) as listener, socket.create_connection(listener.getsockname()) as here:
        there, _ = listener.accept()
        with there:
            yield here, there


@pytest.mark.parametrize(("host", "is_checked"), [("127.0.0.1", False), ("127.0.0.2", True)])
def test_what_leaves_its_address_is_checked(host, is_checked):
    with connected(host) as (here, there):
        out, kept = Outgoing(1, "model", here, lambda connection: None), Kept()
        stream = Incoming(0, "model", there)
        data = bytes(range(200))
        out.begin(FrameKind.OWN, 3, memoryview(data))
        assert out.push() == 224
        frame = there.recv(224, socket.MSG_PEEK)
        assert frame == (by_hand(OWN, 3, data) if is_checked else struct.pack("<IIQQ", OWN, 200, 3, 0) + data)
        stream.pull(kept)
        assert kept.taken == [(OWN, 3, data)]
        here.sendall(struct.pack("<IIQQ", OWN, 200, 4, 0) + data)
        if is_checked:
            with pytest.raises(Garbage, match="damaged"):
                stream.pull(kept)
        else:
            stream.pull(kept)
            assert kept.taken[1:] == [(OWN, 4, data)]


@pytest.mark.parametrize(
    "wrong",
    [
        by_hand(SUM, 0, bytes(120)),
        by_hand(OWN, 1, bytes(120)),
        by_hand(OWN, 2**40, bytes(120)),
        by_hand(OWN, 0, bytes(119)),
        by_hand(OWN, 0, b""),
        by_hand(HEADER, 0, bytes(64)),
        by_hand(9, 0, bytes(120)),
        begin(torch.zeros(30)),
        by_hand(UNLIKE, 0, b"[1]"),
        by_hand(UNLIKE, 0, bytes(5000)),
    ],
    ids=range(10),
)
def test_what_has_no_place_in_a_mean_ends_it(wrong, hand):
    waits = hand.mean(torch.zeros(30))
    connection = hand.stream(begin(torch.zeros(30)) + wrong)
    assert isinstance(outcome(waits), Unreached) and has_hung_up(connection)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 24,
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        by_hand(OWN, 0, bytes(120)),
        by_hand(BEGIN, 0, b""),
        by_hand(BEGIN, 0, bytes(31)),
        by_hand(BEGIN, 0, struct.pack("<QQQQ", 1, 1, 1, 1) + b"\xff"),
        by_hand(BEGIN, 0, bytes(5000)),
        begin(torch.zeros(30), attempt=(0, 9)),
        begin(torch.zeros(30), ranks=(0, 1, 2)),
        begin(torch.zeros(30), round=2),
    ],
    ids=range(10),
)
def test_garbage_ends_its_stream_and_nothing_else(garbage, hand):
    a, b = vectors(2, 30)
    waits = hand.mean(a)
    connection = hand.stream(garbage)
    assert has_hung_up(connection)
    assert hand.crew.carriers[1].mean(KEY, Attempt(1, 1), (0, 1), b).equal(expected([a, b]))
    assert outcome(waits).equal(expected([a, b]))


def test_a_word_of_two_others_is_a_mismatch(hand):
    waits = hand.mean(torch.zeros(30))
    hand.stream(begin(torch.zeros(30)) + by_hand(UNLIKE, 0, Unlike(1, "this", 2, "that").to_bytes()))
    error = outcome(waits)
    assert isinstance(error, Mismatch) and "nodes 1 and 2" in str(error) and "this and that" in str(error)


def test_a_beginning_there_and_back():
    for brings in ("", "(3,) of torch.float32", "ü" * 500, "x" * 100_000):
        mine = Begin.of(KEY, Attempt(2**63 - 1, 7), (3, 1, 2), brings)
        assert Begin.read(mine.to_bytes()) == mine and len(mine.to_bytes()) < 4096
        assert mine == Begin.of(KEY, Attempt(2**63 - 1, 7), (1, 2, 3), brings)
    with pytest.raises(Garbage):
        Unlike.read(b"{")


# Ends -----------------------------------------------------------------------------------------------------------------


def streams_of(crew):
    return sum(len(some) for c in crew.carriers for some in c._table._incoming.values())


def until(condition):
    for _ in range(SECONDS * 100):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("it never happened")


def test_attempts_use_the_same_streams_again(crews):
    crew = crews(3)
    given = vectors(3, 100)
    for number in range(1, 6):
        crew.mean(given, number=number)
    assert streams_of(crew) == 6
    crew.mean(given, number=7, channel="another")
    assert streams_of(crew) == 12


def test_abandoned_attempts_leave_no_streams_behind(crews):
    crew, files = crews(2), []
    given = vectors(2, 100)
    for first in (1, 11, 21):
        for number in range(first, first + 9):
            waits = aside(crew.carriers[0].mean, KEY, Attempt(1, number), (0, 1), given[0])
            until(lambda: crew.carriers[0]._under_way)
            crew.abandon(number)
            assert isinstance(outcome(waits), Abandoned)
        # What had come of them is thrown away when the next begins.
        assert all(result.equal(expected(given)) for result in crew.mean(given, number=first + 9))
        until(lambda: streams_of(crew) == 2)
        # The first time, nodes also look whether the others live, and keep those connections.
        until(lambda: len(files) < 2 or open_files() <= files[1])
        files.append(open_files())


def test_a_crowd_of_streams_is_thinned(hand):
    for _ in range(3 * stream_table._MOST_OF_ONE):
        hand.stream(b"")
    until(lambda: streams_of(hand.crew) <= stream_table._MOST_OF_ONE)


def test_who_hangs_up_is_forgotten(hand):
    connection = hand.stream(b"")
    until(lambda: streams_of(hand.crew) == 1)
    hand.crew.ends[1].box.end_stream(connection)
    until(lambda: streams_of(hand.crew) == 0)


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "keys"])
def test_a_closed_endpoint_leaves_no_thread_and_no_file(is_secured, crews, run_keys):
    before, threads = open_files(), set(threading.enumerate())
    crew = crews(3, run_keys[0] if is_secured else None)
    crew.mean(vectors(3, 100_000))
    waits = aside(crew.carriers[0].mean, KEY, Attempt(1, 9), (0, 1), torch.ones(3))
    until(lambda: crew.carriers[0]._under_way)
    crew.close()
    assert isinstance(outcome(waits), Abandoned)
    left = [t for t in {*threading.enumerate()} - threads if t.name.startswith(("mailbox", "pulse", "letters"))]
    assert not left
    until(lambda: open_files() <= before)
    with pytest.raises(Abandoned):
        crew.carriers[0].mean(KEY, Attempt(1, 10), (0,), torch.ones(3))


def test_a_node_whose_carrier_comes_late_is_waited_for(crews, monkeypatch):
    crew = crews(2)
    box = crew.ends[1].box
    take, box._take_stream = box._take_stream, None
    waits = aside(crew.carriers[0].mean, KEY, Attempt(1, 1), (0, 1), torch.ones(3))
    until(lambda: crew.carriers[0]._under_way)
    box.take_streams(take, crew.carriers[1].close)
    assert crew.carriers[1].mean(KEY, Attempt(1, 1), (0, 1), torch.ones(3)).equal(outcome(waits))
