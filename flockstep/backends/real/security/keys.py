"""Keys of a run: its own authority and a certificate per node, so that its nodes trust each other and no one else.

DIR/authority/   ca.pem ca.key             signs certificates; stays where it was made
DIR/node-0003/   ca.pem node.pem node.key  all that node 3 needs; to be copied to its machine
"""

from __future__ import annotations

import re
import shlex
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from flockstep import check
from flockstep.backends.real.security import certificates
from flockstep.errors import nodes_named

AUTHORITY_FILES = ("ca.pem", "ca.key")
NODE_FILES = ("ca.pem", "node.pem", "node.key")

# The authority outlives its nodes, so that one of them can get a new certificate without all the others.
_LONGEST = 3650
_HOME = re.compile(r"node-([0-9]{4,9})")
_NAME = re.compile(r"node-(0|[1-9][0-9]{0,8})\.flockstep")
_COPY_AGAIN = "copy the folder again, all of it, from where its keys were made"


def name_of(rank: int) -> str:
    """What a node is called in its certificate, and what a client asks a server to be."""
    return f"node-{check.whole('keys.name_of', 'rank', rank, at_least=0)}.flockstep"


def rank_of(certificate: Mapping[str, Any] | None) -> int:
    """Which node a certificate is of, as ``getpeercert`` gives it; ValueError where it is of none, or of several."""
    names = [name for kind, name in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"]
    found = _NAME.fullmatch(names[0]) if len(names) == 1 else None
    if found is None:
        raise _wrong(f"a certificate must name one node, got {names}", "make it with `flockstep keys create`")
    return int(found[1])


def rank_in(certificate: x509.Certificate) -> int:
    """The same of a certificate from a file."""
    names: list[str] = []
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            names = extension.value.get_values_for_type(x509.DNSName)
    return rank_of({"subjectAltName": [("DNS", name) for name in names]})


def create(folder: Path, nodes: int, *, days: int = 365) -> list[int]:
    """Make the authority unless it is there, and the certificates that are missing; the ranks of those made."""
    check.whole("keys.create", "nodes", nodes)
    if check.whole("keys.create", "days", days) > _LONGEST:
        raise ValueError(f"keys.create.days must be at most {_LONGEST}, got {days}")
    missing = [rank for rank in range(nodes) if not home_of(folder, rank).exists()]
    if not missing:
        return []
    now = _now().replace(microsecond=0)
    ends = now + timedelta(days=days)
    signer = _authority(folder, now)
    if ends > signer[0].not_valid_after_utc:
        what = f"the authority in {folder} ends on {_date(signer[0].not_valid_after_utc)}, before {days} days are over"
        raise _wrong(what, "ask for fewer days, or make all keys anew in another folder")
    return [rank for rank in missing if _add_node(folder, rank, signer, now, ends)]


def home_of(folder: Path, rank: int) -> Path:
    """Where the keys of one node lie, in a folder that has those of many."""
    return folder / f"node-{rank:04d}"


def ranks_in(folder: Path) -> list[int]:
    """Whose keys lie in a folder: of all nodes ``create`` made there, or of the one whose own folder it is."""
    if not folder.is_dir():
        return []
    found = sorted(int(match[1]) for path in folder.iterdir() if (match := _HOME.fullmatch(path.name)))
    return found or ([rank_in(read(folder / "node.pem"))] if (folder / "node.pem").exists() else [])


def too_open(home: Path, files: Sequence[str]) -> list[Path]:
    """Files that others than their owner can read or change."""
    return [home / name for name in files if (home / name).exists() and (home / name).stat().st_mode & 0o077]


def read(path: Path) -> x509.Certificate:
    """The certificate in a file; ValueError where there is none."""
    if not path.is_file():
        raise _wrong(f"{path.parent} has no {path.name}", _COPY_AGAIN)
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise _wrong(f"{path} is not a certificate", _COPY_AGAIN) from None


def pair(home: Path, files: Sequence[str]) -> certificates.Pair:
    """The certificate and the key that ``files`` ends with: if all are there, closed to others, and belong together."""
    for name in files:
        if not (home / name).is_file():
            raise _wrong(f"{home} has no {name}", _COPY_AGAIN)
    if exposed := too_open(home, files):
        what = f"others than its owner may read {exposed[0]}"
        raise _wrong(what, shlex.join(["chmod", "600", *map(str, exposed)]))
    found, path = read(home / files[-2]), home / files[-1]
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _wrong(f"{path} is not a private key", _COPY_AGAIN) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != found.public_key():
        raise _wrong(f"{path} does not belong to the certificate in {files[-2]}", _COPY_AGAIN)
    return found, key


@dataclass(frozen=True)
class Keys:
    """One node's certificate, its key, and the authority it trusts."""

    folder: Path
    rank: int

    @classmethod
    def find(cls, folder: str | Path, rank: int) -> Keys:
        """A node's keys, in what ``create`` made or in a copy of its own folder; ValueError where they cannot work."""
        home = _find_home(Path(folder), check.whole("Keys.find", "rank", rank, at_least=0))
        found, _ = pair(home, NODE_FILES)
        if (named := rank_in(found)) != rank:
            what = f"{home} holds the certificate of node {named}, not of node {rank}"
            raise _wrong(what, f"copy {home_of(Path(), rank)} here, from where the keys were made")
        authority = read(home / "ca.pem")
        try:
            found.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise _wrong(f"{home / 'node.pem'} is not signed by the authority in ca.pem", _COPY_AGAIN) from None
        _check_time(found, rank)
        return cls(home, rank)

    @property
    def expires(self) -> datetime:
        """When the certificate ends."""
        return read(self.folder / "node.pem").not_valid_after_utc

    def server_context(self) -> ssl.SSLContext:
        """For accepting: only nodes of this run get in."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        # Connections live as long as the run: nobody comes back with a ticket.
        context.num_tickets = 0
        return context

    def client_context(self) -> ssl.SSLContext:
        """For connecting: with ``name_of(peer)`` as ``server_hostname``, nobody else can answer for that node."""
        # Such a context demands a certificate, and the right name in it, by itself.
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, side: int) -> ssl.SSLContext:
        # Not the default context, which also trusts the authorities of the system.
        context = ssl.SSLContext(side)
        context.sslsocket_class = _Secured
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.hostname_checks_common_name = False
        context.load_verify_locations(self.folder / "ca.pem")
        context.load_cert_chain(self.folder / "node.pem", self.folder / "node.key")
        return context


class _Secured(ssl.SSLSocket):
    """A secured connection. One whose peer hung up while it was made reaches nobody who could close it."""

    def __del__(self) -> None:
        self.close()


def _find_home(folder: Path, rank: int) -> Path:
    make = f"`flockstep keys create DIR --nodes {rank + 1}`, or more nodes"
    fix = f"copy {home_of(Path(), rank)} there; it is made by {make}"
    if not folder.is_dir():
        raise _wrong(f"there is no folder {folder} with the keys of node {rank}", fix)
    if home_of(folder, rank).is_dir():
        return home_of(folder, rank)
    if any((folder / name).exists() for name in NODE_FILES):
        return folder
    raise _wrong(f"{folder} has no keys of node {rank}", fix)


def _check_time(found: x509.Certificate, rank: int) -> None:
    begins, ends, now = found.not_valid_before_utc, found.not_valid_after_utc, _now()
    if now < begins:
        what = f"the certificate of node {rank} begins on {_date(begins)}, and here it is {_date(now)}"
        raise _wrong(what, "set this machine's clock, or make other keys with `flockstep keys create`")
    if now > ends:
        make = f"`flockstep keys create DIR --nodes {rank + 1}`, or more nodes"
        fix = f"where the authority is, delete {home_of(Path('DIR'), rank)}, then {make}, and copy the new folder here"
        raise _wrong(f"the certificate of node {rank} ended on {_date(ends)}", fix)


def _authority(folder: Path, now: datetime) -> certificates.Pair:
    """The one that is there, or a new one."""
    home = folder / "authority"
    if not home.exists():
        if orphans := ranks_in(folder):
            # A new authority would know nothing of them, and they would find out only when they talk.
            what = f"{folder} has keys of {nodes_named(orphans)} but not the authority that signed them"
            raise _wrong(what, f"bring {home} back, or make all keys anew in another folder")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made, key = certificates.authority(now, now + timedelta(days=_LONGEST))
        certificates.place(home, {"ca.pem": made, "ca.key": key})
    # Read again, since somebody else may have been faster.
    return pair(home, AUTHORITY_FILES)


def _add_node(folder: Path, rank: int, signer: certificates.Pair, begins: datetime, ends: datetime) -> bool:
    made, key = certificates.node(name_of(rank), signer, begins, ends)
    return certificates.place(home_of(folder, rank), {"ca.pem": signer[0], "node.pem": made, "node.key": key})


def _now() -> datetime:
    return datetime.now(UTC)


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _wrong(what: str, fix: str) -> ValueError:
    return ValueError(f"{what}\n  {fix}")
