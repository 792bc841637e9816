"""Be ``python *arguments``, forked from a server that has imported torch: what ``warm.stub()`` makes a command of.

A benchmark starts its nodes as ``[sys.executable, "-m", ...]``, some of them behind ``ip netns exec``. This stands
where they expect a Python: it has the server fork a process that gets its streams, folder, variables and namespaces,
hands signals on to it, and ends as it ends. It imports no more than it needs, and what it starts ends with it.
"""

import os
import signal
import sys
from multiprocessing import context, forkserver, process, reduction, resource_tracker
from operator import methodcaller
from pathlib import Path
from types import ModuleType

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stream:
    """An open file, which whoever unpickles it has under a number of its own."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return methodcaller("detach"), (reduction.DupFd(self.number),)


def stand_in(*arguments):
    """In the process that the server forks this name is that of a function of ``warm``."""


def main(address, path, arguments):
    """Have it forked, wait, and end alike."""
    named = ModuleType("warm")
    stand_in.__module__, named.stand_in = named.__name__, stand_in  # type: ignore[attr-defined]
    sys.modules["warm"] = named
    # Nothing that is imported here is its main program; and it has no use for a tracker of resources.
    del sys.modules["__main__"].__file__
    place = str(Path.cwd())
    sys.path[:], process.ORIGINAL_DIR = path, place  # type: ignore[attr-defined]
    nothing = os.open(os.devnull, os.O_RDWR)
    resource_tracker._resource_tracker._fd = nothing  # type: ignore[attr-defined]
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address, server._forkserver_alive_fd = address, nothing  # type: ignore[attr-defined]
    server.ensure_running = lambda: None
    streams = [Stream(number) for number in range(3)]
    told = (arguments, place, dict(os.environ), streams, os.getpid(), address)
    forked = context.ForkServerProcess(target=stand_in, args=told)
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    forked.start()
    for number in HANDED_ON:
        signal.signal(number, lambda number, frame: os.kill(forked.pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
    forked.join()
    if forked.exitcode < 0:
        if -forked.exitcode != signal.SIGKILL:
            signal.signal(-forked.exitcode, signal.SIG_DFL)
        os.kill(os.getpid(), -forked.exitcode)
    os._exit(forked.exitcode)
