"""The certificate of a node's direct links: made anew by each process, and known by its digest."""

from __future__ import annotations

import hashlib
import ssl
import tempfile
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID

VALID = timedelta(days=3650)
"""Nobody looks at it: a certificate is good for as long as its process runs."""


def serving_context() -> tuple[ssl.SSLContext, bytes]:
    """The context of a server with a certificate of its own, and that certificate's digest. Raises `OSError`."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "swarm")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + VALID)
        .sign(key, None)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # sessions are never resumed
    show(context, key, certificate)
    return context, digest_of(certificate.public_bytes(serialization.Encoding.DER))


def asking_context() -> ssl.SSLContext:
    """The context of a client, which compares the digest itself: no authority knows these certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def show(context: ssl.SSLContext, key: CertificateIssuerPrivateKeyTypes, certificate: x509.Certificate) -> None:
    """Have connections of this context show the certificate, which is for this key. Raises `OSError`."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # The library reads keys from files only; mode 0600, gone at once.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(private + certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)


def digest_of(certificate: bytes) -> bytes:
    """Of a certificate in DER."""
    return hashlib.sha256(certificate).digest()
