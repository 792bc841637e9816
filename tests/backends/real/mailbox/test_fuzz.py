"""200,000 inputs that hardly anyone would send: each is read for what it plainly is, or refused with a reason."""

import gc
import random
import re
import resource
import subprocess
import sys
import time
from dataclasses import astuple
from functools import partial
from pathlib import Path

import pytest
from hostile import (
    DTYPES,
    FIELDS,
    FRAME,
    RUN,
    Wire,
    body,
    frame_bytes,
    head,
    little,
    plain_frame,
    plain_head,
    plain_header,
    resident_bytes,
)
from xxhash import xxh3_64

from flockstep.backends.real.mailbox import http
from flockstep.backends.real.mailbox.client import read_frame, read_message
from flockstep.backends.real.mailbox.http import Deadline, Exchange, Reader
from flockstep.backends.real.mailbox.memory import Buffers
from flockstep.backends.real.mailbox.wire import Frame, Refused
from flockstep.backends.real.membership.member_line import Member
from flockstep.backends.real.membership.members import Members
from flockstep.message import Message

MEGABYTE = 2**20
EXTREMES = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**20 - 1, 2**20, 2**31, 2**32 - 1, 2**36, 2**36 + 1, 2**40)
HUGE = (*EXTREMES, 2**40 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


# How inputs are spoilt -----------------------------------------------------------------------------------------------


def flip(rng, data):
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if spoilt:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def overwrite(rng, data):
    at, count = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 16))
    return data[:at] + rng.choice((rng.randbytes(count), b"\xff" * count, bytes(count))) + data[at + count :]


def truncate(rng, data):
    return data[: rng.randrange(len(data) + 1)]


def extend(rng, data):
    return data + rng.choice((rng.randbytes(rng.randint(1, 300)), data, b"\0", b"\r\n\r\n"))


def drop(rng, data):
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randint(1, 9) :]


def swap(rng, data):
    a, b, c = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def garbage(rng, data):
    return rng.randbytes(rng.choice((0, 1, len(data), len(data), rng.randrange(400))))


def untouched(rng, data):
    return data


def fields_swapped(rng, data):
    """Two fields of a frame in each other's place."""
    (a, b), (c, d) = sorted(rng.sample(list(FIELDS.values()), 2))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def field_extreme(rng, data):
    """A number of a frame, as large as can be said."""
    begin, end = FIELDS[rng.choice(("version", "kind", "sender", "incarnation", "dtype", "dimensions", "length"))]
    if rng.random() < 0.4:
        begin = FIELDS["shape"][0] + 8 * rng.randrange(4)
        end = begin + 8
    return data[:begin] + little(rng.choice(HUGE), end - begin) + data[end:]


ANY = (flip, flip, overwrite, truncate, extend, drop, swap, garbage, untouched)
OF_A_FRAME = (*ANY, flip, overwrite, fields_swapped, field_extreme, field_extreme)


def some_frame(rng, length=None):
    shape = tuple(rng.choice((0, 1, 3, 100)) for _ in range(rng.randrange(5)))
    return frame_bytes(
        kind=rng.randint(1, 4),
        sender=rng.choice((0, 1, 5, 2**20 - 1)),
        incarnation=rng.choice((0, 1, 2**64 - 1)),
        topic=rng.choice((b"", b"weights", "größe".encode(), b"x" * 64)),
        codec=rng.choice((b"raw", b"modular 8", b"c" * 16)),
        dtype=rng.randrange(len(DTYPES)),
        shape=shape,
        length=rng.choice((0, 1, 5, 333)) if length is None else length,
    )


# What each parser must make of them ----------------------------------------------------------------------------------


def refusal_of(what, kinds):
    """What a parser returned, or that it refused with a reason; anything else ends the test."""
    try:
        return what()
    except kinds as error:
        assert str(error).strip(), "refused without a reason"
        if isinstance(error, Refused):
            assert 400 <= error.status < 600
        return None


def frames(rng):
    spoil = rng.choice(OF_A_FRAME)
    data = spoil(rng, some_frame(rng))
    frame = refusal_of(partial(Frame.unpack, data), Refused)
    found = frame and (frame.kind, frame.run, frame.sender, frame.incarnation, frame.topic)
    found = frame and (*found, frame.codec, frame.shape, frame.dtype, frame.length)
    assert found == plain_frame(data), data
    return found is not None


def headers(rng):
    data = rng.choice(OF_A_FRAME)(rng, some_frame(rng))[104:]
    found = refusal_of(partial(Message.read_header, data), ValueError)
    assert found == plain_header(data), data
    return found is not None


LINES = ("1=127.0.0.1:80/5", "2=[::1]:9/0/left", "1048575=h:65535/18446744073709551615", "0=me:1/7", "4=a.b-c_d:1/1")


def lists_of_peers(rng):
    text = ",".join(rng.choices(LINES, k=rng.choice((0, 1, 3, 40))))
    spoil = rng.choice((*ANY, overwrite, swap))
    text = spoil(rng, text.encode()).decode(rng.choice(("latin-1", "latin-1", "utf-16-le")), errors="replace")
    if rng.random() < 0.1:
        text = text.replace("1", rng.choice(("٣", "９", "-1", "+1", " 1", "1_0", "99999999999999999999999"))) * 3
    members = Members(Member(0, "here:1", 3), 2)
    learned = refusal_of(lambda: members.learn(text) or True, ValueError)
    known = plain_list(text)
    assert bool(learned) == (known is not None), text
    for rank in range(6):
        assert (members.address(rank), members.incarnation(rank)) == (known or {0: ("here:1", 3)}).get(rank, (None, 0))
    return learned is not None


def plain_list(text):
    """Address and incarnation by rank, after the list was taken over; None if it must be refused."""
    known = {0: ("here:1", 3)}
    if len(text) > 2**20:
        return None
    for line in text.split(",") if text else ():
        rank, equals, rest = line.partition("=")
        address, *end = rest.split("/")
        host, colon, port = address.rpartition(":")
        if not equals or not colon or len(end) not in (1, 2) or end[1:] not in ([], ["left"]):
            return None
        for digits, most in ((rank, 7), (port, 5), (end[0], 20)):
            if not 1 <= len(digits) <= most or set(digits) - set("0123456789"):
                return None
        if int(rank) >= 2**20 or not 0 < int(port) < 2**16 or int(end[0]) >= 2**63:
            return None
        if not 1 <= len(host) <= 255 or not re.fullmatch(r"[a-zA-Z0-9_.:\[\]-]+", host):
            return None
        if int(rank) != 0 and (int(rank) not in known or int(end[0]) > known[int(rank)][1]):
            known[int(rank)] = address, int(end[0])
    return known


BUFFERS = Buffers()
EXTRA = (
    b"transfer-encoding: chunked",
    b"expect: 100-continue",
    b"upgrade: h2c",
    b"connection: close",
    b"x: " + b"y" * 99,
)


def parts_of_a_request(rng, *, response):
    data = rng.randbytes(rng.choice((0, 1, 5, 333)))
    frame = some_frame(rng, len(data))
    checksum = xxh3_64(frame + data).digest()
    claimed = FRAME + len(data) + 8
    if rng.random() < 0.1:
        claimed = rng.choice((*HUGE, claimed - 1, claimed + 1))
    first = rng.choice((b"HTTP/1.1 200 OK",) if response else (b"POST /message HTTP/1.1", b"GET /about HTTP/1.0"))
    extra = rng.sample(EXTRA, rng.choice((0, 0, 0, 0, 1, 2)))
    return [head(claimed, *extra, first=first, peers=LINES[0].encode()), frame, data, checksum]


def reordered(rng, parts):
    return rng.sample(parts, len(parts))


def some_part(spoil):
    def spoil_some(rng, parts):
        which = rng.randrange(len(parts))
        return [spoil(rng, part) if which == i else part for i, part in enumerate(parts)]

    return spoil_some


def doubled_line(rng, parts):
    lines = parts[0].split(b"\r\n")
    lines.insert(rng.randint(1, len(lines) - 1), rng.choice(lines))
    return [rng.choice((b"\r\n", b"\n")).join(lines), *parts[1:]]


def endless_head(rng, parts):
    return [parts[0][:-2] + b"x-more: " + b"y" * rng.choice((100, 16_000, 20_000)) + b"\r\n\r\n", *parts[1:]]


OF_A_REQUEST = (*map(some_part, (*OF_A_FRAME[:-3], field_extreme)), reordered, doubled_line, endless_head)


def requests(rng):
    response = rng.random() < 0.3
    parts = parts_of_a_request(rng, response=response)
    data = b"".join(rng.choice(OF_A_REQUEST)(rng, parts))
    wire, deadline = Wire(data, rng), Deadline(600)
    exchange = Exchange(wire, client=response)
    if response:
        exchange.request(0, "")
    found = refusal_of(lambda: exchange.read(deadline), (Refused, ConnectionError))
    if found is None:
        return False
    first, fields, rest = plain_head(data)
    told = dict(fields)
    assert found.length == int(told.get(b"content-length", b"0").split(b",")[0])
    assert found.peers == told.get(b"flockstep-peers", b"").decode()
    assert found.rest + wire.unread == rest
    assert len(found.rest) <= found.length <= 2**36 + FRAME + 8
    words = first.split(b" ")
    assert (found.target, found.status) == ((b"", int(words[1])) if response else (b" ".join(words[:2]), 0))
    return whole_message(found, wire, rest, deadline)


def whole_message(found, wire, rest, deadline):
    reader = Reader(wire, found.rest, deadline)
    frame = refusal_of(lambda: read_frame(found, reader), (Refused, ConnectionError))
    plain = plain_frame(rest[:FRAME])
    if frame is None:
        assert plain is None or found.length != FRAME + plain[-1] + 8
        return False
    assert (frame.topic, frame.length) == (plain[4], plain[-1])
    assert frame.length == found.length - FRAME - 8
    message = refusal_of(lambda: read_message(frame, reader, BUFFERS), (Refused, ConnectionError))
    end = FRAME + frame.length
    right = len(rest) >= end + 8 and xxh3_64(rest[:end]).digest() == rest[end : end + 8]
    assert (message is not None) == right
    if message is not None:
        assert message.data.numpy().tobytes() == rest[FRAME:end]
        assert (message.codec, message.shape, message.dtype) == plain[5:8]
    return right


# ---------------------------------------------------------------------------------------------------------------------

PARSERS = {frames: 90_000, headers: 30_000, lists_of_peers: 30_000, requests: 50_000}


def fuzz(parser, count):
    rng = random.Random(f"{parser.__name__} 1")
    accepted, resident = 0, []
    for i in range(count):
        accepted += parser(rng)
        if i % (count // 4) == count // 4 - 1:
            gc.collect()
            resident.append(resident_bytes())
    # Both happen, or the generator is not worth much.
    assert count / 100 < accepted < count / 2
    return resident


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
def test_a_few(parser):
    fuzz(parser, 1000)


def test_there_are_as_many_as_promised():
    assert sum(PARSERS.values()) == 200_000


@pytest.mark.thorough
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
def test_very_many(parser):
    resident = fuzz(parser, PARSERS[parser])
    assert max(resident[1:]) - resident[0] < 8 * MEGABYTE


# Memory and time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [2**30, 2**32 + 1, 2**36])
def test_a_claim_of_gigabytes_takes_no_memory_before_they_come(claimed):
    rng = random.Random(claimed)
    frame = frame_bytes(length=claimed)
    data = head(FRAME + claimed + 8) + frame + bytes(1000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for _ in range(20):
        wire, deadline = Wire(data, rng), Deadline(600)
        found = Exchange(wire, client=False).read(deadline)
        reader = Reader(wire, found.rest, deadline)
        read = read_frame(found, reader)
        # No memory for it, or nothing of it in time: either is said.
        with pytest.raises((ConnectionResetError, Refused), match=r"hung up in the middle|no memory for"):
            read_message(read, reader, Buffers())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - peak < 64 * MEGABYTE


@pytest.mark.slow
def test_where_there_is_no_memory_that_is_said():
    script = f"""
import random, resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from hostile import FRAME, Wire, frame_bytes
from flockstep.backends.real.mailbox.client import read_message
from flockstep.backends.real.mailbox.memory import Buffers
from flockstep.backends.real.mailbox.http import Deadline, Reader
from flockstep.backends.real.mailbox.wire import Frame, Refused
most = 2**33 + int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (most, most))
frame = Frame.unpack(frame_bytes(length=2**34))
try:
    read_message(frame, Reader(Wire(b"", random.Random(1)), b"", Deadline(60)), Buffers())
except Refused as refused:
    print(refused.status, refused.reason)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "507 this node has no memory for a message of 17179869184 bytes\n"


@pytest.mark.parametrize("count", [FRAME, 300_000])
def test_one_byte_at_a_time_does_not_move_the_deadline(monkeypatch, count):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    waits = []

    class Trickle:
        def settimeout(self, seconds):
            waits.append(seconds)

        def setsockopt(self, level, option, count):
            pass

        def recv_into(self, view):
            now[0] += 9.0
            view[0] = 1
            return 1

    with pytest.raises(TimeoutError):
        Reader(Trickle(), b"", http.Deadline(10.0)).read(count)
    assert now[0] <= 20.0


def test_the_deadline_of_a_head_is_one_for_all_of_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    class Trickle:
        def settimeout(self, seconds):
            assert seconds > 0

        def recv(self, most):
            now[0] += 3.0
            return b"x"

    with pytest.raises(TimeoutError):
        Exchange(Trickle(), client=False).read(http.Deadline(10.0))
    assert now[0] <= 12.0


def test_the_control_is_accepted():
    rng = random.Random(0)
    whole = body(b"12345", run=RUN)
    wire, deadline = Wire(head(len(whole)) + whole, rng), Deadline(60)
    found = Exchange(wire, client=False).read(deadline)
    reader = Reader(wire, found.rest, deadline)
    assert found._replace(rest=b"") == (b"POST /message", 0, len(whole), "", b"")
    assert bytes(read_message(read_frame(found, reader), reader, Buffers()).data.numpy()) == b"12345"
    assert astuple(Member.read("2=[::1]:9/0/left")) == (2, "[::1]:9", 0, True, "", "")
