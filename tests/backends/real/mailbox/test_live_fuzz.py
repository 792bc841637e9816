"""2,000 hostile inputs over real sockets: each is answered with a reason or cut off, and nothing of it stays."""

import json
import random
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hostile import KNOCK, RUN, SECONDS, body, connect, frame_bytes, head, plain_head, request, stranger

from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.security.keys import Keys, create, home_of, name_of
from flockstep.message import Message

COUNT = 2000
WARM_UP = 400
MEGABYTE = 2**20


class Victim:
    """Somebody else's process."""

    def __init__(self, keys):
        command = [sys.executable, "-W", "error", str(Path(__file__).parent / "victim.py"), str(keys)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.plain, self.secured = json.loads(self._process.stdout.readline())

    def measured(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def settled(self, files, threads):
        """What is measured once all connections have ended, at the latest when the time is over."""
        breath = threading.Event()
        for _ in range(SECONDS * 20):
            found = self.measured()
            if found["connections"] == 0 and found["files"] <= files and found["threads"] <= threads:
                break
            breath.wait(0.05)
        return found

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(SECONDS) == 0
        self._process.stdout.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    create(folder / "run", 3)
    create(folder / "foreign", 1)
    return folder


@pytest.fixture(scope="module")
def victim(folder):
    victim = Victim(folder / "run")
    yield victim
    victim.close()


def address_of(line):
    return line.partition("=")[2].partition("/")[0]


# What is said ----------------------------------------------------------------------------------------------------
#
# Each makes (pieces to send, what must come of it). "refused": a status and a reason. "broken": that, or a connection
# that just ends. "nothing": whoever sent it does not wait for anything.


def spoilt(rng):
    whole = bytearray(body(rng.randbytes(rng.choice((0, 1, 50, 3000)))))
    for _ in range(rng.choice((1, 1, 3))):
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    return [head(len(whole)) + whole], "refused"


def spoilt_head(rng):
    said = bytearray(head(181))
    said[rng.randrange(len(said))] ^= 1 << rng.randrange(8)
    # The head may be as good as before; the body is not.
    return [bytes(said) + body(run=bytes(16))], "broken"


def wrong_field(rng):
    fields = rng.choice(
        (
            {"version": rng.choice((0, 2, 65535))},
            {"kind": rng.choice((0, 3, 5, 255))},
            {"run": rng.randbytes(16)},
            {"sender": rng.choice((1, 2**20, 2**32 - 1))},
            {"topic": b"\xff\xfe"},
            {"topic": b"\n"},
            {"codec": b"\x80"},
            {"codec": b""},
            {"dtype": rng.randint(7, 255)},
            {"dimensions": rng.randint(5, 255)},
            {"shape": (2**62, 2**62), "dimensions": 2},
            {"length": rng.choice((0, 6, 2**32, 2**36, 2**36 + 1, 2**64 - 1))},
            {"checksum": rng.randbytes(8)},
        )
    )
    return [request(**fields)], "refused"


def huge_claim(rng):
    length = rng.choice((2**30, 2**33, 2**36))
    return [head(168 + length + 8) + frame_bytes(length=length) + bytes(rng.choice((0, 100, 70_000)))], "cut"


def huge_nonsense(rng):
    return [head(rng.choice((2**36 + 177, 2**60, 10**19))) + rng.randbytes(100)], "refused"


def too_short(rng):
    """A content-length that is less than what comes."""
    whole = body()
    return [head(rng.randrange(len(whole))) + whole], "refused"


def too_long(rng):
    whole = body()
    return [head(len(whole) + rng.choice((1, 8, 10_000))) + whole], "refused"


def reordered(rng):
    parts = [head(181), body()[:168], b"\1\2\3\4\5", body()[-8:]]
    first = parts.copy()
    while parts == first:
        rng.shuffle(parts)
    return parts, "broken"


def cut(rng):
    said = request(rng.randbytes(rng.choice((0, 5, 100_000))))
    return [said[: rng.randrange(len(said))]], "cut"


def unfinished(rng):
    said = request()
    return [said[: rng.randrange(len(said))]], "nothing"


def byte_by_byte(rng):
    said = request(run=rng.randbytes(16))
    return [said[i : i + 1] for i in range(len(said))], "refused"


def glued(rng):
    good = request(b"\1" * rng.choice((1, 5000)), kind=KNOCK)
    return [good + rng.choice((request(run=rng.randbytes(16)), rng.randbytes(300), b"\0\0"))], "broken"


def glued_later(rng):
    return [request(kind=KNOCK), request(run=bytes(16))], "broken"


def garbage(rng):
    return [rng.randbytes(rng.choice((1, 10, 1000, 30_000))) + b"\r\n\r\n"], "broken"


def endless_head(rng):
    return [head(181)[:-2] + b"x: " + b"y" * rng.choice((17_000, 40_000, 500_000))], "broken"


def many_fields(rng):
    return [head(181, *[b"x%d: y" % i for i in range(rng.choice((10, 5000)))]) + body(run=bytes(16))], "broken"


def other_http(rng):
    first = rng.choice(
        (b"GET /../../etc/passwd HTTP/1.1", b"TRACE / HTTP/1.1", b"POST /message HTTP/1.0", b"CONNECT a:1 HTTP/1.1")
    )
    extra = rng.choice((b"transfer-encoding: chunked", b"expect: 100-continue", b"upgrade: h2c", b"content-length: 7"))
    return [head(0, extra, first=first)], "refused"


def handshake(rng):
    """What a client with TLS says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = stranger().wrap_bio(incoming, outgoing, server_hostname=name_of(1))
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    said = outgoing.read()
    return [said if rng.random() < 0.5 else said[: rng.randrange(1, len(said))]], "refused"


PLAIN = (
    [spoilt] * 5
    + [wrong_field, spoilt_head] * 3
    + [huge_claim, huge_nonsense, too_short, too_long, reordered, cut, unfinished, byte_by_byte, glued, glued_later]
    + [garbage, endless_head, many_fields, other_http, handshake]
)


def plain_words(rng):
    return [rng.choice((request(), head(0, first=b"GET /about HTTP/1.1"), b"\r\n", rng.randbytes(300)))], "silence"


def broken_handshake(rng):
    (said,), _ = handshake(rng)
    at = rng.randrange(len(said))
    return [said[:at] + rng.randbytes(20) + said[at + 20 :]], "silence"


SECURED = [plain_words, broken_handshake]


# What comes of it ------------------------------------------------------------------------------------------------


def responses(data):
    """Status and words of each response in what came."""
    while data:
        first, fields, rest = plain_head(data)
        length = int(dict(fields)[b"content-length"])
        assert len(rest) >= length
        yield int(first.split()[1]), rest[:length]
        data = rest[length:]


def everything(connection):
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


def hostile(address, pieces, fate):
    """Say it, and see what comes of it."""
    with connect(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                connection.sendall(piece)
            if fate == "nothing":
                return "nothing"
            if fate != "refused":
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            # Cut off before it had said all.
            assert fate in ("broken", "silence")
        got = everything(connection)
    if fate == "silence":
        # At most alerts of TLS, no application data.
        assert not got or got[0] in (0x15, 0x16)
        assert RUN.hex().encode() not in got
        return "silence"
    said = list(responses(got))
    if not said or said[-1][0] == 200:
        assert fate in ("cut", "broken"), (pieces, fate, said)
        return "cut off"
    assert said[-1][0] >= 400
    assert said[-1][1].decode().strip()
    return "told why"


def with_a_certificate(address, context, rng):
    """Through TLS, where the secured house listens to members only."""
    pieces, _ = wrong_field(rng)
    try:
        with connect(address, context, name_of(1)) as connection:
            connection.sendall(pieces[0])
            said = list(responses(everything(connection)))
    except (ssl.SSLError, ConnectionError):
        return "silence"
    assert said[-1][0] >= 400
    assert said[-1][1].decode().strip()
    return "told why"


def attack(victim, folder, numbers):
    foreign = stranger(home_of(folder / "foreign", 0))
    member = Keys.find(folder / "run", 0).client_context()

    def one(number):
        rng = random.Random(f"live {number}")
        if number % 50 == 0:
            return "member", with_a_certificate(address_of(victim.secured), member, rng)
        if number % 50 == 1:
            return "outsider", with_a_certificate(address_of(victim.secured), rng.choice((foreign, stranger())), rng)
        if number % 10 == 2:
            make = rng.choice(SECURED)
            return make.__name__, hostile(address_of(victim.secured), *make(rng))
        make = rng.choice(PLAIN)
        return make.__name__, hostile(address_of(victim.plain), *make(rng))

    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(one, numbers))


def ask_normally(victim, folder):
    """A member of the run comes and asks, at both houses."""
    for line, keys in ((victim.plain, None), (victim.secured, Keys.find(folder / "run", 0))):
        house = open_endpoint(RUN, 0, 3, Limits(SECONDS), ListenOn(keys=keys))
        try:
            house.box.members.learn(line)
            asked = Message(torch.arange(100_000).to(torch.uint8), "raw", (100_000,), torch.uint8)
            assert torch.equal(house.box.ask(1, "topic", asked).data, asked.data * 2)
        finally:
            house.close()


@pytest.mark.thorough
def test_two_thousand_times(victim, folder):
    ask_normally(victim, folder)
    found = attack(victim, folder, range(WARM_UP))
    ask_normally(victim, folder)
    before = calm(victim)
    found += attack(victim, folder, range(WARM_UP, COUNT))
    ask_normally(victim, folder)
    after = victim.settled(before["files"], before["threads"])
    assert after["errors"] == []
    assert after["connections"] == 0
    assert after["files"] <= before["files"]
    assert after["threads"] <= before["threads"]
    assert after["resident"] - before["resident"] < 16 * MEGABYTE
    assert sum(found.values()) == COUNT
    # Members are told why, outsiders get nothing.
    assert found["member", "told why"] == COUNT // 50
    assert found["outsider", "silence"] == COUNT // 50


def calm(victim):
    """What is measured when nobody is connected."""
    return victim.settled(10**9, 10**9)


@pytest.mark.slow
def test_a_few(victim, folder):
    found = attack(victim, folder, range(1000, 1100))
    assert sum(found.values()) == 100
    ask_normally(victim, folder)
    assert calm(victim)["errors"] == []
    assert calm(victim)["connections"] == 0
