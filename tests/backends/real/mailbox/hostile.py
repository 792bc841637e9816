"""Messages written and read by hand, byte by byte, to hold the library's own writing and reading to."""

import re
import resource
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import torch
from xxhash import xxh3_64

RUN = bytes(range(100, 116))
SECONDS = 60
FRAME = 168
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int32, torch.int64)
# Where each field of a frame lies.
FIELDS = {
    "magic": (0, 4),
    "version": (4, 6),
    "kind": (6, 7),
    "gap": (7, 8),
    "run": (8, 24),
    "sender": (24, 28),
    "gap after the sender": (28, 32),
    "incarnation": (32, 40),
    "topic": (40, 104),
    "codec": (104, 120),
    "dtype": (120, 121),
    "dimensions": (121, 122),
    "gap after the dimensions": (122, 128),
    "shape": (128, 160),
    "length": (160, 168),
}
ASK, SEND, REPLY, KNOCK, WORD, STREAM = range(1, 7)


def little(number, count):
    return (number % 2 ** (8 * count)).to_bytes(count, "little")


def frame_bytes(
    *,
    magic=b"FLOK",
    version=1,
    kind=ASK,
    run=RUN,
    sender=0,
    incarnation=2**62,
    topic=b"topic",
    codec=b"raw",
    dtype=0,
    shape=(5,),
    dimensions=None,
    length=5,
):
    said = len(shape) if dimensions is None else dimensions
    shape = [*shape, *[0] * (4 - len(shape))]
    parts = [magic, little(version, 2), little(kind, 1), bytes(1), run, little(sender, 4), bytes(4)]
    parts += [little(incarnation, 8), topic.ljust(64, b"\0"), codec.ljust(16, b"\0"), little(dtype, 1), little(said, 1)]
    parts += [bytes(6), *(little(size, 8) for size in shape), little(length, 8)]
    return b"".join(parts)


def body(data=b"\1\2\3\4\5", *, checksum=None, **fields):
    frame = frame_bytes(**{"length": len(data), "shape": (len(data),), **fields})
    return frame + data + (xxh3_64(frame + data).digest() if checksum is None else checksum)


def head(length, *extra, first=b"POST /message HTTP/1.1", peers=b""):
    lines = [first, b"host: flockstep", b"content-length: %d" % length, b"flockstep-peers: " + peers, *extra]
    return b"\r\n".join([*lines, b"", b""])


def request(data=b"\1\2\3\4\5", *, peers=b"", **fields):
    whole = body(data, **fields)
    return head(len(whole), peers=peers) + whole


def number(data, begin, end):
    return sum(byte << (8 * i) for i, byte in enumerate(data[begin:end]))


def plain_name(field):
    """What stands before the zeros that fill a field; None if it is not of that form."""
    name = field.rstrip(b"\0")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None
    return text if all(character.isprintable() for character in text) else None


def plain_header(data):
    """Codec, shape, dtype and length by a plain reading of the 64 bytes; None if they must be refused."""
    if len(data) != 64:
        return None
    codec, dtype, dimensions = plain_name(data[:16]), data[16], data[17]
    sizes = [number(data, 24 + 8 * i, 32 + 8 * i) for i in range(4)]
    if not codec or not codec.isascii() or dtype >= len(DTYPES) or dimensions > 4:
        return None
    if data[18:24] != bytes(6) or max(sizes) >= 2**63 or any(sizes[i] for i in range(dimensions, 4)):
        return None
    count = 1
    for size in sizes[:dimensions]:
        count *= size
    if count > 2**40:
        return None
    return codec, tuple(sizes[:dimensions]), DTYPES[dtype], number(data, 56, 64)


def plain_frame(data):
    """Every field by a plain reading of a frame; None if it must be refused."""
    if len(data) != FRAME or data[:4] != b"FLOK" or number(data, 4, 6) != 1:
        return None
    if data[6] not in (1, 2, 3, 4, 5, 6) or data[7] or any(data[28:32]) or number(data, 24, 28) >= 2**20:
        return None
    topic, header = plain_name(data[40:104]), plain_header(data[104:])
    if topic is None or header is None or header[3] > 2**36:
        return None
    return (data[6], data[8:24], number(data, 24, 28), number(data, 32, 40), topic, *header)


def plain_head(data):
    """First line, fields and what follows of a head; None if it does not end."""
    end = re.search(rb"\n\r?\n", data)
    if end is None:
        return None
    first, *lines = [line.removesuffix(b"\r") for line in data[: end.start()].split(b"\n")]
    fields = []
    for line in lines:
        if line[:1] in (b" ", b"\t") and fields:
            fields[-1][1] += b" " + line.strip(b" \t")
        else:
            name, _, value = line.partition(b":")
            fields.append([name.lower(), value.strip(b" \t")])
    return first, fields, data[end.end() :]


class Wire:
    """A connection whose other side has said ``data`` and hung up; it hands out pieces of any length."""

    def __init__(self, data, rng):
        self._data, self._rng, self._at = data, rng, 0

    @property
    def unread(self):
        return self._data[self._at :]

    def settimeout(self, seconds):
        assert seconds > 0

    def setsockopt(self, level, option, count):
        assert count >= 1

    def recv(self, most):
        piece = self._data[self._at : self._at + self._length(most)]
        self._at += len(piece)
        return piece

    def recv_into(self, view):
        piece = self.recv(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def _length(self, most):
        return most if self._rng.random() < 0.7 else self._rng.randint(1, most)


@dataclass
class Said:
    """A response."""

    status: int
    fields: dict
    body: bytes

    @property
    def words(self):
        return self.body.decode()


def connect(address, context=None, name=None):
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), SECONDS)
    return connection if context is None else context.wrap_socket(connection, server_hostname=name)


def read_response(connection):
    """The next response; None if the other side hung up without one."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(4096)
        if not piece:
            assert not data, data
            return None
        data += piece
    first, fields, rest = plain_head(data)
    found = {name.decode(): value for name, value in fields}
    while len(rest) < int(found["content-length"]):
        piece = connection.recv(4096)
        assert piece, "hung up in the middle of a response"
        rest += piece
    assert len(rest) == int(found["content-length"])
    return Said(int(first.split()[1]), found, rest)


def speak(address, data, context=None, name=None):
    """One request on a connection of its own, and its response."""
    with connect(address, context, name) as connection:
        connection.sendall(data)
        return read_response(connection)


def stranger(home=None):
    """A client that takes any server, and shows a certificate if it has one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if home is not None:
        context.load_cert_chain(home / "node.pem", home / "node.key")
    return context


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
