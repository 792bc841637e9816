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


def context() -> Any:
    """How children are started: forked from a server that has imported torch once, where there is such a thing."""
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


def _die_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
