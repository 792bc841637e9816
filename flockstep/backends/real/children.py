"""Processes that are started here, nodes and members of crews, and that end with whoever started them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
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
    forking.set_forkserver_preload(["flockstep.backends.real.warm"])
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
