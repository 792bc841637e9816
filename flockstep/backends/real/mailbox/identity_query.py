"""What a mailbox says of itself to whoever may ask: its run, its node, its clock, and whom it knows."""

from __future__ import annotations

import json
import socket
import ssl
import time
from dataclasses import dataclass
from typing import NamedTuple

from flockstep.backends.real.mailbox.http import Deadline, Exchange, Reader
from flockstep.backends.real.mailbox.wire import Refused
from flockstep.backends.real.membership.member_line import parse_address
from flockstep.backends.real.security.keys import Keys, name_of

# Lines about 10,000 nodes fit, with a certificate and a signature each.
_LONGEST = 2**24
_FIELDS = {"protocol": int, "flockstep": str, "run": str, "rank": int, "incarnation": int, "size": int, "peers": str}


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The answer of one mailbox."""

    address: str
    protocol: int
    flockstep: str
    run: str
    rank: int
    incarnation: int
    size: int
    peers: str
    timeout: float
    clock_skew: float
    """How many seconds its clock is ahead of ours, to within half the round trip."""
    round_trip: float


class Answer(NamedTuple):
    """What a mailbox said, and the time here before and after."""

    body: bytes
    before: float
    after: float


def ask_identity(address: str, keys: Keys | None, seconds: float, *, of: int | None = None) -> Identity:
    """Ask a mailbox about itself; OSError where nothing answers, Refused where something else does. With keys any node
    of the run will do, unless it must be ``of`` a certain one.
    """
    answer = fetch(address, keys, seconds, b"GET /about", of=of)
    return _read(answer.body, address, answer.before, answer.after)


def fetch(address: str, keys: Keys | None, seconds: float, what: bytes, *, of: int | None = None) -> Answer:
    """One request for text, by method and path, to any node of the run or ``of`` one; OSError, or Refused."""
    method, target = what.split(b" ")
    deadline = Deadline(seconds)
    with socket.create_connection(parse_address(address), deadline.left()) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with _secured(plain, keys, of) as connection:
            exchange = Exchange(connection, client=True)
            before = time.time()
            connection.sendall(exchange.request(0, "", target=target, method=method))
            head = exchange.read(deadline)
            after = time.time()
            body = Reader(connection, head.rest, deadline).read(min(head.length, _LONGEST))
    if head.status != 200:
        raise Refused(body.decode(errors="replace") or f"HTTP status {head.status}", head.status)
    return Answer(body, before, after)


def _secured(connection: socket.socket, keys: Keys | None, of: int | None) -> socket.socket:
    if keys is None:
        return connection
    context: ssl.SSLContext = keys.client_context()
    if of is not None:
        return context.wrap_socket(connection, server_hostname=name_of(of))
    # Which node it is, it will say.
    context.check_hostname = False
    return context.wrap_socket(connection)


def _read(body: bytes, address: str, before: float, after: float) -> Identity:
    try:
        parsed = json.loads(body)
        fields = {name: kind(parsed[name]) for name, kind in _FIELDS.items()}
        skew, timeout = float(parsed["time"]) - (before + after) / 2, float(parsed["timeout"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise Refused(f"{address} is not a Flockstep node") from None
    return Identity(address=address, timeout=timeout, clock_skew=skew, round_trip=after - before, **fields)
