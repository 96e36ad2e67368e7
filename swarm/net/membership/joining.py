"""Finding out which run this is: connected peers are asked in turn until one answers with a manifest."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from swarm.errors import PeerUnreachable, Refusal
from swarm.net.addresses.dial import Backoff
from swarm.net.membership.member import Member
from swarm.net.runtime import Signal
from swarm.net.services.manifest import MANIFEST_PROTOCOL

logger = logging.getLogger(__name__)

ASK_AGAIN_AFTER_S = 1.0
ANSWER_TIMEOUT_S = 5.0

Call = Callable[[str, str, bytes, float], Awaitable[bytes]]
"""The answer of a connected peer: `call(peer_id, protocol, payload, timeout_s)`. Raises `PeerUnreachable`."""


class Joining:
    """Asks peers until the run is known. Independent of asyncio and trio."""

    def __init__(self, member: Member, call: Call, peers_changed: Signal) -> None:
        """`peers_changed` is set when there may be a new peer to ask."""
        self._member = member
        self._call = call
        self._peers_changed = peers_changed
        self._asking = Backoff(member.settings.retry_s, longest_s=member.settings.retry_s)

    async def join(self) -> None:
        """Return when the run is known."""
        run, peers = self._member.run, self._member.peers
        while run.manifest is None:
            now = time.monotonic()
            # Bootstraps first: the user trusts them to name the run.
            for peer_id in sorted(peers.connected, key=lambda peer_id: peer_id not in peers.bootstrap):
                if run.manifest is None and self._asking.wait_s(peer_id, now) <= 0:
                    await self._ask(peer_id)
            if run.manifest is None:
                self._peers_changed.clear()
                await self._peers_changed.wait_for(ASK_AGAIN_AFTER_S)
        logger.info("joined run %s", run.manifest.run_id)

    async def _ask(self, peer_id: str) -> None:
        try:
            sealed = await self._call(peer_id, MANIFEST_PROTOCOL, b"", ANSWER_TIMEOUT_S)
            if sealed:
                self._member.run.adopt(sealed)
                return
        except PeerUnreachable as error:
            logger.debug("no manifest from %s: %s", peer_id, error)
        except Refusal as refusal:
            self._member.counters.add("refused_manifests")
            self._member.versions.refused(peer_id, refusal)
            logger.warning("refused the manifest that %s sent: %s", peer_id, refusal)
        self._asking.failed(peer_id, time.monotonic())
