"""Threads that wait for something to do: to wake one takes a twentieth of the time that starting one takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextvars import Context
from queue import Empty, SimpleQueue

_Line = SimpleQueue[Callable[[], None]]
_PATIENCE = 10.0
_idle: list[_Line] = []
_turn = threading.Lock()


def run_on_thread(call: Callable[[], None]) -> None:
    """Run ``call``, which must not raise, in a thread besides this one."""
    with _turn:
        line = _idle.pop() if _idle else None
    if line is None:
        line = SimpleQueue()
        threading.Thread(target=_work, args=(line,), name="hand", daemon=True).start()
    line.put(call)


def _work(line: _Line) -> None:
    while True:
        try:
            call = line.get(timeout=_PATIENCE)
        except Empty:
            with _turn:
                if line in _idle:
                    _idle.remove(line)
                    return
            # It was called just now.
            continue
        # As in a thread of its own: nothing that one call sets is there for the next.
        Context().run(call)
        del call
        with _turn:
            _idle.append(line)


def _alone() -> None:
    """In a forked process there are no such threads."""
    global _turn
    _turn = threading.Lock()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)
