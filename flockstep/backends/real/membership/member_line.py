"""A line about a node: its number, where its mailbox is, which life this is, and with keys the proof that it says so.

RANK=HOST:PORT/INCARNATION                           3=10.0.0.4:29603/1760000000000000000
RANK=HOST:PORT/INCARNATION/left                      its loop has ended; it still answers
either, then ;SIGNATURE or ;SIGNATURE;CERTIFICATE    by the node's own key, in base64 for addresses
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from flockstep.backends.real.mailbox.wire import MOST_RANKS

# 64 bytes are a signature. The certificates that `flockstep keys create` makes have 500, and nobody else makes any.
_PROOF = r";([\w-]{86})(?:;([\w-]{1,1024}))?"
_LINE = re.compile(rf"(\d{{1,7}})=([\w.:\[\]-]{{1,255}}:\d{{1,5}})/(\d{{1,20}})(/left)?(?:{_PROOF})?", re.ASCII)


@dataclass(frozen=True)
class Member:
    """One line of the list."""

    rank: int
    address: str
    """``host:port`` of its mailbox."""
    incarnation: int
    """Grows when a node is started anew: of two nodes with one number the newer is meant."""
    left: bool = False
    signature: str = ""
    certificate: str = ""

    def __str__(self) -> str:
        return f"{self.short};{self.certificate}" if self.certificate else self.short

    @cached_property
    def short(self) -> str:
        """The line for those who have the certificate already."""
        return f"{self.statement};{self.signature}" if self.signature else self.statement

    @property
    def statement(self) -> str:
        """What the line says, and what is signed."""
        return f"{self.rank}={self.address}/{self.incarnation}{'/left' if self.left else ''}"

    @classmethod
    def read(cls, line: str) -> Member:
        """A line; ValueError where it is not one."""
        match = _LINE.fullmatch(line)
        if match is None or not _in_range(int(match[1]), match[2], int(match[3])):
            raise ValueError(f"not a line about a node: {line[:80]!r}")
        return cls(int(match[1]), match[2], int(match[3]), match[4] is not None, match[5] or "", match[6] or "")


def _in_range(rank: int, address: str, incarnation: int) -> bool:
    # The system takes a port modulo 2**16, and a frame has 8 bytes for an incarnation.
    return rank < MOST_RANKS and 0 < parse_address(address)[1] < 2**16 and incarnation < 2**64


def format_address(host: str, port: int) -> str:
    """``10.0.0.1:29600`` or ``[::1]:29600``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Host and port; ValueError where there is no port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
