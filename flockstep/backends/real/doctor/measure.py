"""How many bytes a second, and what to call it."""

from __future__ import annotations

import time
from collections.abc import Callable

from flockstep.backends.real.doctor.probe_server import MOST_BYTES
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.wire import Refused

_FIRST = 64_000
_GROWTH = 16


def rate(transfer: Callable[[int], None], seconds: float) -> float:
    """Bytes a second, from a transfer that takes about so long; shorter ones before it find out how much that is."""
    count = _FIRST
    while True:
        begin = time.perf_counter()
        transfer(count)
        took = time.perf_counter() - begin
        if took >= seconds or count >= MOST_BYTES:
            return count / took
        # A little more than needed, so that the next is most likely the last.
        wanted = round(1.3 * count * seconds / took)
        count = min(max(wanted, 2 * count), _GROWTH * count, MOST_BYTES)


def show_rate(bytes_per_second: float) -> str:
    """``48.2 Mbit/s``, for people."""
    bits = 8 * bytes_per_second
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if bits < 999.5:
            return f"{bits:.3g} {unit}"
        bits /= 1000
    return f"{bits:.3g} Gbit/s"


def reason(error: Exception, limits: Limits) -> str:
    """Why a question had no answer, without the numbers that doctors have among themselves."""
    cause = error.__cause__ or error
    if isinstance(cause, TimeoutError):
        return f"no reply in {limits.timeout:g} s"
    return cause.reason if isinstance(cause, Refused) else str(cause)
