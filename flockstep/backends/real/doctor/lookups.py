"""Names and addresses: what the system says of them, and how long it takes to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from typing import TypeVar

from flockstep.backends.real.mailbox.endpoint import own_address_towards

T = TypeVar("T")

SLOW = 1.0
"""Seconds above which a lookup is felt: torch makes one for every client of its store."""

# Addresses that documentation is written with: nobody has them, so the way there is the way out.
_NOBODY = "192.0.2.1"


class Unresolved(Exception):
    """The system has no answer, or none in time."""


def addresses(host: str, seconds: float) -> tuple[list[str], float]:
    """All addresses of a name, and how long that took; Unresolved if there are none."""
    found, took = _timed(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM), seconds)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found)), took


def name(address: str, seconds: float) -> tuple[str, float]:
    """The name of an address, empty if it has none, and how long that took; Unresolved if nobody said in time."""

    def ask() -> str:
        try:
            return socket.gethostbyaddr(address)[0]
        except socket.herror:
            return ""

    return _timed(ask, seconds)


def outward() -> str:
    """This machine's own address on the way to others; loopback if it has none."""
    return own_address_towards(_NOBODY)


def _timed(ask: Callable[[], T], seconds: float) -> tuple[T, float]:
    """What it gives, and how long it took. The system's own lookups cannot be stopped, only left alone."""
    result: Future[T] = Future()

    def work() -> None:
        try:
            result.set_result(ask())
        except Exception as error:
            result.set_exception(error)

    begin = time.perf_counter()
    threading.Thread(target=work, name="lookup", daemon=True).start()
    try:
        return result.result(seconds), time.perf_counter() - begin
    except NotDone:
        raise Unresolved(f"no answer in {seconds:g} s") from None
    except (OSError, UnicodeError) as error:
        # A name too long, or with nothing between two dots, is not even asked for.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "this is no name"
        raise Unresolved(reason) from None
