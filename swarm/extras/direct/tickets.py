"""Tickets for direct links: where to connect, which certificate to expect, and a secret.

Each process generates a certificate, which peers know by its digest.
"""

from __future__ import annotations

import hashlib
import secrets
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID
from msgspec import Meta, Struct

from swarm.net.config import LEAST_PORT
from swarm.types import complete

VALID = timedelta(days=3650)
"""Not checked: a certificate is good for as long as its process runs."""
SECRET_BYTES = 32
DIGEST_BYTES = 32
LIFE_S = 10.0
"""From the ticket's issue to the secret's arrival."""
MAX_TICKETS = 64


def serving_context() -> tuple[ssl.SSLContext, bytes]:
    """A server's context with a new certificate, and the certificate's digest. Raises `OSError`."""
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
    """SHA-256 of a certificate in DER."""
    return hashlib.sha256(certificate).digest()


class Ticket(Struct, frozen=True, array_like=True):
    """Port, certificate and secret for one link."""

    port: Annotated[int, Meta(ge=LEAST_PORT, le=65_535)]
    certificate: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    """Digest of the certificate that the server will show."""
    secret: Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    """Proves who connects; valid once, for `LIFE_S`."""


class Errand(Struct, frozen=True):
    """The peer and request of a ticket."""

    peer_id: str
    request: bytes
    expires_at: float


class Secrets:
    """The secrets of tickets that have not been used. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._errands: dict[bytes, Errand] = {}
        """Errands by secret, oldest first."""

    def issue(self, peer_id: str, request: bytes) -> bytes:
        """A new secret for a peer's request; the peer's earlier one is void, and the oldest of too many."""
        secret = secrets.token_bytes(SECRET_BYTES)
        with self._lock:
            self._keep(lambda errand: errand.peer_id != peer_id)
            if len(self._errands) >= MAX_TICKETS:
                del self._errands[next(iter(self._errands))]
            self._errands[secret] = Errand(peer_id, request, self._clock() + LIFE_S)
        return secret

    def redeem(self, secret: bytes) -> Errand | None:
        """The errand of a secret, once; None for any other bytes."""
        with self._lock:
            self._keep_valid()
            return self._errands.pop(secret, None)

    def any(self) -> bool:
        """Whether a link may be opened now."""
        with self._lock:
            self._keep_valid()
            return bool(self._errands)

    def _keep_valid(self) -> None:
        now = self._clock()
        self._keep(lambda errand: errand.expires_at > now)

    def _keep(self, stays: Callable[[Errand], bool]) -> None:
        self._errands = {secret: errand for secret, errand in self._errands.items() if stays(errand)}


complete(globals())
