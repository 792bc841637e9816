"""Who answers at an address: whose certificate it is, which side lacks keys, or that it is no mailbox at all.

Both ends only say that they did not understand each other. Why, is found by calling again in other ways.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

from cryptography import x509

from flockstep.backends.real.doctor.finding import Finding, failed, ok
from flockstep.backends.real.mailbox.identity_query import Identity, ask_identity
from flockstep.backends.real.mailbox.wire import Refused
from flockstep.backends.real.membership.member_line import format_address
from flockstep.backends.real.security.keys import Keys, rank_in, rank_of

CHECK = "keys"
_NOT_YET_VALID, _EXPIRED = 9, 10
_SAME_KEYS = "make keys once, with `flockstep keys create DIR --nodes N`, and copy each node's folder to its machine"
_FOLDER = (
    "where the authority is, delete the folder of that node, then `flockstep keys create`, and copy the new one there"
)
NO_ANSWER = (OSError, Refused, ValueError, OverflowError, RecursionError)
"""What asking a mailbox about itself may raise, since whoever answers may be none and say anything."""


@dataclass(frozen=True)
class Caller:
    """Where to call, with whose keys, and how long to wait each time."""

    host: str
    port: int
    keys: Keys | None
    seconds: float

    @property
    def address(self) -> str:
        """As mailboxes write it."""
        return format_address(self.host, self.port)

    def connect(self) -> socket.socket:
        """A connection; the system chooses among the addresses of a name."""
        return socket.create_connection((self.host, self.port), self.seconds)

    def ask(self) -> Identity:
        """What the mailbox there says of itself."""
        return ask_identity(self.address, self.keys, self.seconds)

    def who(self) -> tuple[Finding, Identity | None]:
        """Who answers, and what that one says of itself."""
        if self.keys is None:
            return self._who_without_keys()
        try:
            rank, version = self._handshake(self.keys)
            about = self.ask()
        except ssl.SSLCertVerificationError as error:
            return self._unknown(error), None
        except NO_ANSWER as error:
            return self._why_not(self.keys, error), None
        if about.rank != rank:
            seen = f"it says it is node {about.rank}, and shows the certificate of node {rank}"
            return failed(CHECK, seen, _SAME_KEYS), None
        return ok(CHECK, f"{version}, it shows the certificate of node {rank}, of the same authority"), about

    def _who_without_keys(self) -> tuple[Finding, Identity | None]:
        try:
            return ok(CHECK, "none on both sides: nothing is encrypted"), self.ask()
        except TimeoutError:
            return self._silent(), None
        except NO_ANSWER as error:
            shown = self._shown()
            if shown is None:
                return self._no_mailbox(error), None
            seen = f"{_named(shown)} at {self.address} has keys, and this side has none"
            return failed(CHECK, seen, "give this side keys of the same authority with --keys DIR --rank R"), None

    def _handshake(self, keys: Keys) -> tuple[int, str]:
        context = keys.client_context()
        # Any node of the run will do: which one it is, is what we want to know.
        context.check_hostname = False
        with self.connect() as plain, context.wrap_socket(plain) as secured:
            return rank_of(secured.getpeercert()), secured.version() or "TLS"

    def _unknown(self, error: ssl.SSLCertVerificationError) -> Finding:
        """Its certificate is not accepted here."""
        shown = self._shown()
        who = _named(shown) if shown else "it"
        if shown is not None and error.verify_code == _EXPIRED:
            return failed(CHECK, f"the certificate of {who} ended on {shown.not_valid_after_utc:%Y-%m-%d}", _FOLDER)
        if shown is not None and error.verify_code == _NOT_YET_VALID:
            seen = f"the certificate of {who} begins on {shown.not_valid_before_utc:%Y-%m-%d}, later than it is here"
            return failed(CHECK, seen, "set this machine's clock: timedatectl set-ntp true")
        seen = f"{who} shows a certificate that this side's authority did not sign: {error.verify_message}"
        return failed(CHECK, seen, _SAME_KEYS)

    def _why_not(self, keys: Keys, error: Exception) -> Finding:
        """With keys, and yet no answer that makes sense."""
        if isinstance(error, TimeoutError):
            return self._silent()
        if (refusal := self._refusal(keys)) is not None:
            fix = "compare `flockstep keys show DIR` and `date` on both machines"
            return failed(CHECK, f"it refuses the certificate of node {keys.rank}, this side's: {refusal}", fix)
        try:
            ask_identity(self.address, None, self.seconds)
        except NO_ANSWER:
            return self._no_mailbox(error)
        fix = "start the other side with --keys DIR (FLOCKSTEP_KEYS=DIR), or leave --keys away here"
        return failed(CHECK, f"this side has keys, and {self.address} has none", fix)

    def _refusal(self, keys: Keys) -> str | None:
        """What the other side says to our certificate, if it says no."""
        context = keys.client_context()
        context.check_hostname = False
        try:
            with self.connect() as plain, context.wrap_socket(plain) as secured:
                try:
                    # Only listens: whoever sends and is refused may find the connection reset, and the reason lost.
                    secured.recv(1)
                except ssl.SSLError as error:
                    return (
                        (error.reason or str(error)).removeprefix("SSLV3_ALERT_").removeprefix("TLSV1_ALERT_").lower()
                    )
        except OSError:
            pass
        return None

    def _shown(self) -> x509.Certificate | None:
        """The certificate of a node, as shown to anybody who calls; None where it is none of ours."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with self.connect() as plain, context.wrap_socket(plain) as secured:
                found = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
            _named(found)
        except (OSError, ValueError):
            return None
        return found

    def _silent(self) -> Finding:
        seen = f"{self.address} takes connections and says nothing in {self.seconds:g} s"
        return failed(CHECK, seen, "look there whether the node hangs, and whether the port is that of a mailbox")

    def _no_mailbox(self, error: Exception) -> Finding:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        fix = "give the address a node tells (node.address), or that `flockstep doctor --listen` prints"
        return failed(CHECK, f"{self.address} is not a Flockstep node: {why}", fix)


def _named(certificate: x509.Certificate) -> str:
    """Whose certificate it is; ValueError where it is no node's."""
    return f"node {rank_in(certificate)}"
