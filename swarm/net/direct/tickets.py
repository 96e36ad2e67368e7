"""Tickets: what a peer needs to open one direct link."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from swarm.types import complete

SECRET_BYTES = 32
DIGEST_BYTES = 32
LIFE_S = 10.0
"""From the ticket's issue to the secret's arrival."""
MAX_TICKETS = 64
LEAST_PORT = 1_024
"""Ports below belong to the system's services; nobody is sent there."""


class Ticket(Struct, frozen=True, array_like=True):
    """Where to connect, whom to expect there, and what to say."""

    port: Annotated[int, Meta(ge=LEAST_PORT, le=65_535)]
    certificate: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    """Digest of the certificate that the server will show."""
    secret: Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    """Proves who connects; valid once, for `LIFE_S`."""


class Errand(Struct, frozen=True):
    """What a ticket was given out for."""

    peer_id: str
    request: bytes
    expires_at: float


class Secrets:
    """The secrets of tickets that have not been used. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """None are out."""
        self._clock = clock
        self._lock = threading.Lock()
        self._errands: dict[bytes, Errand] = {}
        """By secret, oldest first."""

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
        """What a secret was issued for, once; None for any other bytes."""
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
