"""A node that comes to a run that is under way: it needs the address of anyone of it, and no store.

FLOCKSTEP_JOIN   HOST:PORT of a mailbox of the run; several, separated by commas, in case some are gone
RANK             the number to have; the next free one unless given. With keys, the number they are for
"""

from __future__ import annotations

import os
from functools import lru_cache

from flockstep.backends.real.fabric import Fabric
from flockstep.backends.real.join.joined import RealPlace
from flockstep.backends.real.launch.cluster_environment import alone_on_purpose
from flockstep.backends.real.mailbox.endpoint import Endpoint, ListenOn, open_endpoint
from flockstep.backends.real.mailbox.identity_query import Identity, ask_identity
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.backends.real.mailbox.member_line import Member, parse_address
from flockstep.backends.real.mailbox.wire import VERSION, Refused
from flockstep.backends.real.security.keys import Keys
from flockstep.errors import FlockstepError, LostPeer

_PATIENCE = 30.0


def join_late() -> RealPlace | None:
    """The seat of a node that was told whom to join; None without."""
    contacts = os.environ.get("FLOCKSTEP_JOIN")
    if contacts and alone_on_purpose():
        raise ValueError(f"FLOCKSTEP_ALONE is 1, but FLOCKSTEP_JOIN is {contacts!r}\n  unset one of the two")
    return _place(contacts, os.environ.get("RANK")) if contacts else None


@lru_cache(maxsize=1)
def _place(contacts: str, wanted: str | None) -> RealPlace:
    folder = os.environ.get("FLOCKSTEP_KEYS")
    if folder and wanted is None:
        raise ValueError("a node that joins a run with keys must say which node's they are: set RANK, or give --rank")
    keys = Keys.find(folder, int(wanted or 0)) if folder else None
    identity = _first_to_answer(contacts.split(","), keys)
    known = [Member.read(line).rank for line in identity.peers.split(",")]
    rank = max(known) + 1 if wanted is None else int(wanted)
    size = max(*known, rank, identity.size - 1) + 1

    def make(one_sided: bool) -> Fabric:
        if not one_sided:
            raise FlockstepError(f"node {rank} comes late: only a one-sided strategy takes nodes in while it runs")
        return MailFabric(rank, size, identity.timeout, lambda: _endpoint(identity, rank), newcomer=True)

    return RealPlace(rank, size, 0, make)


def _endpoint(identity: Identity, rank: int) -> Endpoint:
    site = ListenOn.from_environment(rank, towards=parse_address(identity.address)[0])
    run, limits, told = bytes.fromhex(identity.run), Limits(identity.timeout), identity.peers
    endpoint = open_endpoint(run, rank, identity.size, limits, site, said_before=told)
    endpoint.box.members.learn(told, identity.rank)
    return endpoint


def _first_to_answer(contacts: list[str], keys: Keys | None) -> Identity:
    why = []
    for contact in contacts:
        try:
            identity = ask_identity(contact, keys, _PATIENCE)
        except (OSError, ValueError, Refused) as error:
            why.append(f"{contact}: {error}")
            continue
        if identity.protocol != VERSION:
            raise FlockstepError(f"{contact} speaks version {identity.protocol} of the protocol, this node {VERSION}")
        return identity
    raise LostPeer("none of the nodes in FLOCKSTEP_JOIN answers: " + "; ".join(why))
