"""Signals at a moment when they would leave half-started processes behind."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def felt_later(*numbers: int) -> Iterator[None]:
    """These signals inside are felt at the end."""
    # Only the main thread is ever interrupted.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    felt: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: felt.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in felt:
            signal.raise_signal(number)


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Ctrl-C inside is felt at the end, and processes started inside never feel it."""
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    with felt_later(signal.SIGINT):
        # Blocked as well: a new process inherits that, and not the handler, which another thread of ours may be given.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            # What was held back comes now, and is among what is felt.
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
