"""Signatures under lines about members: what a node says of itself, others can pass on, and nobody can make up.

A proof is a signature by the node's own key, and the certificate that has this key and is signed by the run's
authority. Neither is a secret. Validity dates are not looked at here: whether a line is believed must not depend on
anybody's clock, and whoever connects to the node checks them.
"""

from __future__ import annotations

import base64
import binascii
import threading

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning

from flockstep.backends.real.security.keys import NODE_FILES, Keys, pair, rank_in, read

# No message of another purpose begins like this: TLS signs with the same keys.
_PURPOSE = b"flockstep member line\0"
_NUMBER_BYTES = 32
_HASH = ec.ECDSA(hashes.SHA256())


class LineSignatures:
    """Signs one node's lines, and verifies those of all others of its run."""

    def __init__(self, keys: Keys, run: bytes) -> None:
        certificate, self._key = pair(keys.folder, NODE_FILES)
        self.certificate = _text(certificate.public_bytes(Encoding.DER))
        """This node's, as it travels."""
        self._run, self._authority = run, read(keys.folder / "ca.pem")
        self._lock = threading.Lock()
        # Only what the authority has signed gets in, so that nobody can fill them.
        self._by_text: dict[str, tuple[int, ec.EllipticCurvePublicKey]] = {}
        self._newest: dict[int, str] = {}

    def sign(self, statement: str) -> str:
        """This node's signature under what it says of itself."""
        numbers = decode_dss_signature(self._key.sign(self._signed(statement), _HASH))
        return _text(b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in numbers))

    def certificate_of(self, rank: int, statement: str, signature: str, certificate: str) -> str | None:
        """The certificate under which a statement is signed by a node; None where it is not. Without ``certificate``
        it must be the one that was seen last.
        """
        with self._lock:
            text = certificate or self._newest.get(rank, "")
            found = self._by_text.get(text)
        if found is None:
            found = self._read(text)
        if found is None or found[0] != rank or not self._is_signed(statement, signature, found[1]):
            return None
        with self._lock:
            self._by_text[text], self._newest[rank] = found, text
        return text

    def _is_signed(self, statement: str, signature: str, key: ec.EllipticCurvePublicKey) -> bool:
        try:
            both = _bytes(signature)
            r, s = (int.from_bytes(half, "big") for half in (both[:_NUMBER_BYTES], both[_NUMBER_BYTES:]))
            key.verify(encode_dss_signature(r, s), self._signed(statement), _HASH)
        except (ValueError, InvalidSignature):
            return False
        return len(both) == 2 * _NUMBER_BYTES

    def _read(self, text: str) -> tuple[int, ec.EllipticCurvePublicKey] | None:
        """Whose certificate this is, and its key; None where the run's authority has not signed it for a node."""
        try:
            certificate = x509.load_der_x509_certificate(_bytes(text))
            # First of all: what it says is read only if the authority has said it.
            certificate.verify_directly_issued_by(self._authority)
            rank, key = rank_in(certificate), certificate.public_key()
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
            return None
        except CryptographyDeprecationWarning:
            # Where warnings are errors: a serial number below 0, which no authority gives.
            return None
        return (rank, key) if isinstance(key, ec.EllipticCurvePublicKey) else None

    def _signed(self, statement: str) -> bytes:
        return _PURPOSE + self._run + statement.encode()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        # Strictly: one certificate has one text.
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if _text(data) != text:
        raise ValueError("not written as we would")
    return data
