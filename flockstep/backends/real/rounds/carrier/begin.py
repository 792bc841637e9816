"""The first frame of an attempt on a stream: which attempt, and what its sender brings. And the one that ends it where
two nodes brought different things.
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from flockstep.backends.real.rounds.carrier.streams import Garbage
from flockstep.backends.real.rounds.council.words import Attempt, Key

MOST_BYTES = 4096
_NUMBERS = struct.Struct("<QQQQ")
_MOST_TEXT = 500


class Begin(NamedTuple):
    """What a BEGIN says."""

    attempt: Attempt
    round: int
    among: int
    """A checksum of the ranks that take part."""
    brings: str

    @classmethod
    def of(cls, key: Key, attempt: Attempt, ranks: tuple[int, ...], brings: str) -> Begin:
        """That of this node."""
        if len(brings) > _MOST_TEXT:
            brings = f"{brings[:_MOST_TEXT]}... ({xxh3_64_hexdigest(brings.encode())})"
        among = xxh3_64_intdigest(json.dumps(sorted(ranks)).encode())
        return cls(attempt, key.round, among, brings)

    def to_bytes(self) -> bytes:
        """As it travels."""
        return _NUMBERS.pack(self.attempt.epoch, self.attempt.number, self.round, self.among) + self.brings.encode()

    @classmethod
    def read(cls, data: bytes) -> Begin:
        """From bytes; Garbage where it is none."""
        try:
            epoch, number, round, among = _NUMBERS.unpack_from(data)
            return cls(Attempt(epoch, number), round, among, data[_NUMBERS.size :].decode())
        except (struct.error, UnicodeDecodeError):
            raise Garbage("an attempt does not begin like this") from None


class Unlike(NamedTuple):
    """What an UNLIKE says: two nodes, and what each of them brought."""

    a: int
    first: str
    b: int
    second: str

    def to_bytes(self) -> bytes:
        """As it travels."""
        return json.dumps(self).encode()

    @classmethod
    def read(cls, data: bytes) -> Unlike:
        """From bytes; Garbage where it is none."""
        try:
            a, first, b, second = json.loads(data)
        except (ValueError, TypeError, RecursionError):
            raise Garbage("nobody says of two nodes like this that they are unlike") from None
        return cls(int(a), str(first), int(b), str(second))
