"""Names that tell whose a namespace is: a run that died without cleaning up is recognised by the next."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import suppress
from pathlib import Path

_PREFIX = "flockstep-lab"
_NAME = re.compile(rf"({_PREFIX}-(\d+)-(\d+)-\d+)-\w+")
_labs = itertools.count()


def new_lab() -> str:
    """What all namespaces of a new laboratory of this process begin with."""
    pid = os.getpid()
    return f"{_PREFIX}-{pid}-{_started(pid)}-{next(_labs)}"


def belongs(name: str, lab: str) -> bool:
    """Whether a namespace is this laboratory's."""
    match = _NAME.fullmatch(name)
    return match is not None and match[1] == lab


def is_stale(name: str) -> bool:
    """Whether a namespace is one of ours whose process is gone."""
    match = _NAME.fullmatch(name)
    return match is not None and _started(int(match[2])) != int(match[3])


def _started(pid: int) -> int:
    """When a process began, in the kernel's ticks: its number alone may be another's by now. 0 if there is none."""
    with suppress(OSError):
        # The program's own name, in brackets, may hold spaces; what follows it does not.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return 0
