"""Commands that need root, and one wording for what a machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


class Missing(Exception):
    """What this machine lacks to build the laboratory, in one sentence."""


def check_tools() -> None:
    """Missing unless this is Linux, we are root, and the commands are there."""
    if not sys.platform.startswith("linux"):
        raise Missing("network namespaces need Linux")
    for name, package in (("ip", "iproute2"), ("tc", "iproute2"), ("setpriv", "util-linux")):
        if shutil.which(name) is None:
            raise Missing(f"the command {name} is missing; it comes with the package {package}")
    if os.geteuid() != 0:
        raise Missing("network namespaces need root, and this is not")


def run(*words: str, purpose: str) -> str:
    """What a command prints; Missing, in terms of its purpose, if the machine refuses."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[0]
        raise Missing(f"this machine does not allow {purpose}: {' '.join(words[:4])} says {reason!r}")
    return done.stdout
