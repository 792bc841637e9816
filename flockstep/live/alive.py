"""Whether a process still lives, told apart from a later one with the same number."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# Fields of /proc/PID/stat behind the name: the state, and when the process began in ticks since the machine did.
_STATE, _BORN = 0, 19


def here() -> str:
    """This machine's name."""
    return socket.gethostname()


def born(pid: int) -> int | None:
    """When a process began, by the kernel's count; None where nobody tells."""
    fields = _fields(pid)
    return int(fields[_BORN]) if fields else None


def lives(pid: int, since: int | None) -> bool:
    """Whether the process that began then is still at work; one that has ended and waits to be buried is not."""
    fields = _fields(pid)
    if fields:
        return fields[_STATE] not in ("Z", "X") and since in (None, int(fields[_BORN]))
    if Path("/proc/self/stat").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The name stands in brackets and may hold anything, brackets and spaces too.
    return text.rpartition(")")[2].split()
