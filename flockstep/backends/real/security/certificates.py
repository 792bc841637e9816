"""The two kinds of certificates a run needs, an authority's and a node's, and the folders they lie in."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A certificate with the private key that belongs to it.
Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]

# How far behind the clock of another machine may be.
_SKEW = timedelta(hours=1)
# Every TLS 1.3 library must know P-256; one in FIPS mode may refuse Ed25519.
_CURVE = ec.SECP256R1()
_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def authority(begins: datetime, ends: datetime) -> Pair:
    """A new one, unlike any other; what it has signed can sign nothing further."""
    key = ec.generate_private_key(_CURVE)
    name = _named(f"flockstep authority {secrets.token_hex(8)}")
    builder = _begun(name, key, begins, ends).issuer_name(name)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_only("key_cert_sign"), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def node(name: str, signer: Pair, begins: datetime, ends: datetime) -> Pair:
    """A new one for a node, good for accepting connections and for opening them."""
    key = ec.generate_private_key(_CURVE)
    issuer, signing = signer
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = _begun(_named(name), key, begins, ends).issuer_name(issuer.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_only("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    builder = builder.add_extension(signed_by, critical=False)
    return builder.sign(signing, hashes.SHA256()), key


def place(home: Path, files: Mapping[str, x509.Certificate | ec.EllipticCurvePrivateKey]) -> bool:
    """Write a folder that only its owner can read, at once and whole; False where one was there already."""
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".new-") as work:
        new = Path(work) / home.name
        new.mkdir(mode=0o700)
        for name, content in files.items():
            (new / name).touch(mode=0o600, exist_ok=False)
            with (new / name).open("wb") as file:
                file.write(_pem(content))
                file.flush()
                os.fsync(file.fileno())
        try:
            # A folder never takes the place of one that holds something: no key is lost, whoever else is at work here.
            new.rename(home)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return False
            raise
    return True


def _pem(content: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    if isinstance(content, x509.Certificate):
        return content.public_bytes(Encoding.PEM)
    return content.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _begun(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    """What both kinds have."""
    builder = x509.CertificateBuilder(subject_name=subject, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(begins - _SKEW).not_valid_after(ends)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _only(use: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{each: each == use for each in _USES})
