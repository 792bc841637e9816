"""An endpoint: the address on which a mailbox listens, and its keys. From the environment, or given."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from flockstep.backends.real.launch import cluster_environment
from flockstep.backends.real.mailbox.heartbeat import Heartbeat
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.mailbox import Mailbox
from flockstep.backends.real.mailbox.server import Server
from flockstep.backends.real.membership.member_line import Member, format_address
from flockstep.backends.real.membership.members import Members
from flockstep.backends.real.security.keys import Keys
from flockstep.backends.real.security.line_signatures import LineSignatures

LOOPBACK = "127.0.0.1"
_log = logging.getLogger("flockstep")


@dataclass(frozen=True)
class ListenOn:
    """Where a node's mailbox listens, and with which keys."""

    host: str = LOOPBACK
    port: int = 0
    keys: Keys | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.keys is None and not is_loopback(self.host):
            if not self.insecure:
                raise ValueError(
                    f"a mailbox without keys listens on loopback only, not on {self.host}\n"
                    "  make keys with `flockstep keys create DIR` and give them with --keys DIR (FLOCKSTEP_KEYS=DIR), "
                    "or say --insecure (FLOCKSTEP_INSECURE=1) on a network you trust"
                )
            warnings.warn(
                f"the mailbox listens on {self.host} without keys: who reaches it can read and change the model",
                stacklevel=2,
            )

    @classmethod
    def from_environment(cls, rank: int, towards: str | None = None) -> ListenOn:
        """What the variables say; where they name no host, the one on the way to the others, or loopback."""
        folder, insecure = os.environ.get("FLOCKSTEP_KEYS"), os.environ.get("FLOCKSTEP_INSECURE", "") == "1"
        keys = Keys.find(folder, rank) if folder else None
        host, world = os.environ.get("FLOCKSTEP_HOST"), cluster_environment.find(starts_own=True)
        if host is None:
            others = towards or _meeting(world)
            host = own_address_towards(others) if keys or insecure else LOOPBACK
            if host == LOOPBACK and keys is None and _spans_machines(world):
                warnings.warn(
                    "without keys this node's mailbox listens on its own machine only: nodes on other machines cannot "
                    "ask it anything (average_model, one-sided strategies); see `flockstep keys create --help`",
                    stacklevel=2,
                )
        base = int(os.environ.get("FLOCKSTEP_PORT", "0"))
        return cls(
            host, base and base + int(os.environ.get("LOCAL_RANK", world.local_rank if world else 0)), keys, insecure
        )


class Endpoint:
    """A mailbox with everything it needs: a server that listens, and a heartbeat."""

    def __init__(self, box: Mailbox, server: Server, heartbeat: Heartbeat) -> None:
        self.box, self._server, self._heartbeat = box, server, heartbeat

    def close(self) -> None:
        """End it all; no thread and no connection is left, but for a handler that never returns: it is named."""
        self.box.close()
        self._heartbeat.close()
        for thread in self._server.close():
            what = self.box.answering(thread) or "something else"
            _log.warning("node %d ends, and leaves a thread behind that does not: %s", self.box.members.me.rank, what)


def open_endpoint(
    run: bytes,
    rank: int,
    size: int,
    limits: Limits,
    site: ListenOn,
    find: Callable[[int], str | None] = lambda rank: None,
    *,
    said_before: str = "",
) -> Endpoint:
    """Listen, and be a member. ``find(rank)`` looks a member's line up elsewhere, in a store for instance;
    ``said_before`` are lines from before this node was started, of its own former life perhaps.
    """
    # The time tells a node that was started anew from the one before it, whatever machine it is on.
    incarnation = time.time_ns()
    context = None if site.keys is None else site.keys.server_context()
    signatures = None if site.keys is None else LineSignatures(site.keys, run)
    server = Server(site.host, context=context, handshake=limits.connect, port=site.port)
    members = Members(Member(rank, format_address(site.host, server.port), incarnation), size, signatures)
    if former := members.former(said_before):
        members.begin_after(former)
    box = Mailbox(run, members, limits, keys=site.keys, find=find)
    box.desk.know = server.know
    server.start(box.serve)
    return Endpoint(box, server, Heartbeat(box, limits))


def is_loopback(host: str) -> bool:
    """Whether an address leads to this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_address_towards(other: str) -> str:
    """This machine's own address on the way to another; loopback if there is no way."""
    try:
        family, _, _, _, address = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: it only asks the kernel for the way.
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return LOOPBACK


def _spans_machines(world: cluster_environment.World | None) -> bool:
    return world is not None and world.size > 1 and not world.one_machine and not is_loopback(_meeting(world))


def _meeting(world: cluster_environment.World | None) -> str:
    return os.environ.get("MASTER_ADDR") or (world.host if world else "") or LOOPBACK
