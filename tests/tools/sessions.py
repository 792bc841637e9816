"""Processes that descend from one that was started in a session of its own."""

import time
from pathlib import Path


def session(number):
    """The living processes of a session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == number and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def gone(process):
    """Whether all processes of a session end by themselves."""
    deadline = time.monotonic() + 30
    while session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return session(process.pid) == []
