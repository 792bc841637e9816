"""Checks of this machine: versions, names, a mailbox on loopback, open files, keys."""

from __future__ import annotations

import platform
import shlex
import socket
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from flockstep.backends.real.doctor import lookups, measure
from flockstep.backends.real.doctor.finding import Finding, failed, ok, skipped, warning
from flockstep.backends.real.doctor.probe_server import ProbeServer
from flockstep.backends.real.mailbox.endpoint import ListenOn, is_loopback
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.security.keys import Keys, ranks_in
from flockstep.errors import LostPeer
from flockstep.units import show_bytes, show_seconds

_SMALL, _LARGE = 1000, 8_000_000
_ENOUGH_FILES = 1024
_FEW_DAYS = 14


def versions() -> Finding:
    """What runs here."""
    ours = f"flockstep {version('flockstep')}, torch {torch.__version__}, Python {platform.python_version()}"
    return ok("versions", ours)


def own_name(seconds: float, *, apart: bool = False) -> Finding:
    """Whether this machine knows itself by name; ``apart`` if it is to work with other machines."""
    name, here = socket.gethostname(), lookups.outward()
    fix = f"echo {shlex.quote(f'{here} {name}')} | sudo tee -a /etc/hosts"
    try:
        found, took = lookups.addresses(name, seconds)
    except lookups.Unresolved as why:
        return warning("own name", f"{name} has no address: {why}; torch looks it up", fix)
    seen = f"{name} is {', '.join(found)}, found in {show_seconds(took)}"
    if took > lookups.SLOW:
        return warning("own name", f"{seen}; torch waits as long, at every start", fix)
    if apart and all(map(is_loopback, found)):
        message = f"{seen}: on that address gloo listens, where other machines cannot reach it"
        return warning("own name", message, "export GLOO_SOCKET_IFNAME=INTERFACE, one of those that `ip addr` shows")
    return ok("own name", seen)


def own_address(seconds: float) -> Finding:
    """Whether looking up the name of this machine's address stalls."""
    address = lookups.outward()
    fix = f"echo {shlex.quote(f'{address} {socket.gethostname()}')} | sudo tee -a /etc/hosts"
    try:
        found, took = lookups.name(address, seconds)
    except lookups.Unresolved as why:
        return warning("own address", f"{address}: {why}; torch looks up the name of every client of its store", fix)
    seen = f"{address} is {found or 'without a name'}, found in {show_seconds(took)}"
    if took > lookups.SLOW:
        return warning("own address", f"{seen}; torch looks up the name of every client of its store", fix)
    return ok("own address", seen)


def loopback(limits: Limits) -> Finding:
    """Whether two mailboxes of this machine can talk, and how fast."""
    try:
        with ProbeServer(0, limits, ListenOn()) as one, ProbeServer(1, limits, ListenOn()) as other:
            other.meet(0, one.address, one.box.members.me.incarnation)
            times = []
            for count in (_SMALL, _LARGE):
                # The first time opens a connection, and makes the bytes.
                other.echo(0, count)
                begin = time.perf_counter()
                other.echo(0, count)
                times.append(time.perf_counter() - begin)
    except (OSError, LostPeer) as error:
        fix = "allow connections to 127.0.0.1 in this machine's firewall or sandbox"
        return failed("mailbox", f"on loopback: {measure.reason(error, limits)}", fix)
    small, large = times
    return ok(
        "mailbox",
        f"on loopback {show_bytes(_SMALL)} there and back in {show_seconds(small)}, "
        f"{show_bytes(_LARGE)} at {measure.show_rate(2 * _LARGE / large)}",
    )


def open_files() -> Finding:
    """Whether this process may hold as many connections as a large run has."""
    try:
        import resource
    except ImportError:
        return skipped("open files", "this system sets no limit that could be asked for")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    if limit < _ENOUGH_FILES:
        seen = f"at most {limit}; every connection to another node is one"
        return warning("open files", seen, "ulimit -n 4096, in the shell that starts the training")
    return ok("open files", f"at most {limit}")


def keys(folder: Path, rank: int | None) -> tuple[list[Finding], Keys | None]:
    """Whether a node's keys would work, and those keys; of the first node that has any there unless told."""
    try:
        rank = (ranks_in(folder) or [0])[0] if rank is None else rank
        found = Keys.find(folder, rank)
        ends = found.expires
    except ValueError as error:
        what, _, fix = str(error).partition("\n")
        return [failed("keys", what, fix.strip())], None
    except OSError as error:
        fix = "let the user who trains own the keys, and read them"
        return [failed("keys", f"{error.strerror}: {error.filename}", fix)], None
    left = (ends - datetime.now(UTC)).days
    seen = f"node {rank}, valid until {ends:%Y-%m-%d %H:%M} UTC, {left} days left"
    home = found.folder.name
    renew = f"where the authority is, delete DIR/{home}, then `flockstep keys create DIR --nodes N`; copy it here"
    return [
        warning("certificate", seen, renew) if left < _FEW_DAYS else ok("certificate", seen),
        # Keys that others may read were refused above.
        ok("permissions", f"only its owner reads {found.folder}"),
    ], found
