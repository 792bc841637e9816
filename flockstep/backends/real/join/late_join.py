"""A node that comes to a run that is under way: it needs the address of anyone of it, and no store.

FLOCKSTEP_JOIN   HOST:PORT of a mailbox of the run; several, separated by commas, in case some are gone
RANK             the number to have. Unless given, the next that nobody has or had; with keys, the one they are for,
                 or of several the lowest that nobody has or had
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache, partial
from pathlib import Path

from flockstep.backends.real.fabric import Fabric
from flockstep.backends.real.join.claim import Claim, asking
from flockstep.backends.real.join.joined import RealPlace
from flockstep.backends.real.launch.cluster_environment import alone_on_purpose
from flockstep.backends.real.mailbox.endpoint import Endpoint, ListenOn, open_endpoint
from flockstep.backends.real.mailbox.identity_query import Identity, ask_identity
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.backends.real.mailbox.wire import VERSION, Refused
from flockstep.backends.real.membership.member_line import Member, parse_address
from flockstep.backends.real.rounds.elastic_fabric import ElasticFabric
from flockstep.backends.real.security.keys import Keys, ranks_in
from flockstep.elastic import Elastic
from flockstep.errors import FlockstepError, LostPeer

_PATIENCE = 30.0
_log = logging.getLogger("flockstep")


def join_late() -> RealPlace | None:
    """The seat of a node that was told whom to join; None without."""
    contacts = os.environ.get("FLOCKSTEP_JOIN")
    if contacts and alone_on_purpose():
        raise ValueError(f"FLOCKSTEP_ALONE is 1, but FLOCKSTEP_JOIN is {contacts!r}\n  unset one of the two")
    return _place(contacts, os.environ.get("RANK")) if contacts else None


@lru_cache(maxsize=1)
def _place(contacts: str, wanted: str | None) -> RealPlace:
    folder = os.environ.get("FLOCKSTEP_KEYS")
    allowed = _ranks_with_keys(Path(folder)) if folder else None
    # A single certificate is of one node: whoever had that number before is this one, started anew.
    given = allowed[0] if wanted is None and allowed is not None and len(allowed) == 1 else wanted
    number = None if given is None else int(given)
    keys = None
    if folder and allowed is not None:
        keys = Keys.find(folder, allowed[0] if number is None else number)
    identity = _first_to_answer(contacts.split(","), keys)
    claim = None
    if number is None:
        claim = Claim(identity, asking(identity, keys), allowed)
        number = claim.settle()
    known = [Member.read(line).rank for line in identity.peers.split(",")]
    came = False

    def make(one_sided: bool, elastic: Elastic | None) -> Fabric:
        nonlocal came
        if not one_sided and elastic is None:
            raise FlockstepError(
                f"node {place.rank} comes late: only one-sided strategies, and elastic runs, take nodes in\n"
                "  fs.join(..., elastic=True), or flockstep run --elastic, on every node"
            )
        if claim is not None and not came:
            _settle_again(place, claim)
        came = True
        house = partial(_endpoint, identity, place.rank, {} if claim is None else claim.promised)
        if one_sided or elastic is None:
            return MailFabric(place.rank, place.size, identity.timeout, house, newcomer=True, founder=False)
        return ElasticFabric(place.rank, place.size, identity.timeout, house, elastic, newcomer=True, founder=False)

    place = RealPlace(number, max(*known, number, identity.size - 1) + 1, 0, make)
    return place


def _settle_again(place: RealPlace, claim: Claim) -> None:
    """Right before it comes in, ask those who are there by now: hours may have passed, and members died."""
    number = claim.settle(place.rank)
    if number != place.rank:
        _log.warning("the number %d, which this node had, is another's by now: it is node %d", place.rank, number)
        place.rank, place.size = number, max(place.size, number + 1)


def _ranks_with_keys(folder: Path) -> list[int]:
    ranks = ranks_in(folder)
    if not ranks:
        raise ValueError(
            f"there are no keys in {folder}\n  copy a node's folder there, as `flockstep keys create` made it"
        )
    return ranks


def _endpoint(identity: Identity, rank: int, promised: dict[int, str]) -> Endpoint:
    site = ListenOn.from_environment(rank, towards=parse_address(identity.address)[0])
    run, limits, said_before = bytes.fromhex(identity.run), Limits(identity.timeout), identity.peers
    endpoint = open_endpoint(run, rank, identity.size, limits, site, said_before=said_before)
    endpoint.box.members.learn(said_before, identity.rank)
    # Whoever has promised them may be gone when the next one comes.
    endpoint.box.desk.numbers.learn(promised)
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
