"""Ctrl-C at a moment when it would leave half-started processes behind."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Ctrl-C inside is felt at the end, and processes started inside never feel it."""
    # Only the main thread is ever interrupted.
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    # Blocked as well: a new process inherits that, and not the handler, which another thread of ours may be given.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if pressed:
            signal.raise_signal(signal.SIGINT)
