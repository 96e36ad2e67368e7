"""Bulk bytes between two peers over a separate TLS socket instead of the network library.

peer A ── request ──▶ peer B    over the network, which proves who both are
peer A ◀── ticket ─── peer B    port, digest of B's certificate, a secret for A and this request
peer A ══ secret ═══▶ peer B    TLS, to the address at which A sees B
peer A ◀══ bytes ════ peer B
"""

from swarm.extras.direct.client import DirectClient
from swarm.extras.direct.server import DirectServer

__all__ = ["DirectClient", "DirectServer"]
