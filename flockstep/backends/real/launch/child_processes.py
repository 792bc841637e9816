"""Processes that are started here, nodes and members of crews, and that end with whoever started them.

Signals are held back at moments when they would leave half-started processes behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

# By torch, whose tensors then travel as handles to shared memory.
import torch.multiprocessing as mp

_UNGUARDED = 113
"""The exit code of a child whose script starts children as soon as it is imported."""


def context() -> Any:
    """How children are started: forked from a server that has imported torch once, where there is such a thing."""
    # A child imports the script that started it, and must not start it all again. It cannot say so yet, and its
    # traceback would hide what its parent says. Python has no public name for this moment, but an error of its own.
    if getattr(mp.current_process(), "_inheriting", False):
        os._exit(_UNGUARDED)
    if sys.platform == "win32":
        return mp.get_context("spawn")
    forking = mp.get_context("forkserver")
    # Imported once in the server, torch costs each new child nothing.
    forking.set_forkserver_preload(["flockstep.backends.real.launch.forkserver_preload"])
    # Started now, because starting it later would unblock the signals of whoever does.
    resource_tracker.ensure_running()
    return forking


def begin_as_child() -> None:
    """To be called first in a child."""
    # Ctrl-C reaches the whole terminal group: the parent alone decides, and ends the children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def end(processes: Sequence[Any], lines: Sequence[Connection]) -> None:
    """End children, wherever they are: nothing of theirs is worth waiting for."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
        process.close()
    for line in lines:
        line.close()


def ending(process: Any, patience: float) -> str:
    """How a child ended that is gone, or is going: ``was killed by SIGKILL``."""
    process.join(patience)
    code = process.exitcode
    if code == _UNGUARDED:
        return (
            "imports the script that started it, which starts everything again as it is imported\n"
            '  put what the script does under if __name__ == "__main__":'
        )
    return f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"


def _die_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


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
