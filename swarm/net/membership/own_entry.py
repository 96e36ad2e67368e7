"""This node's own entry: its addresses and what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from swarm.net.addresses.nat import most_reachable_first
from swarm.net.addresses.reported import is_private_run, may_be_public
from swarm.net.config import NetworkSettings
from swarm.net.membership.current_run import CurrentRun
from swarm.net.membership.known_peers import KnownPeers
from swarm.net.records.identity import Identity
from swarm.net.records.wire import (
    MAX_PEER_CONTENT_BYTES,
    MAX_PEER_RECORD_BYTES,
    MAX_PEER_RECORD_LIFE_S,
    seal_peer_record,
)
from swarm.types import MAX_MULTIADDRS, MAX_TOLD_TASKS, MemberSummary, PeerRecord

LOOPBACK = ("/ip4/127.", "/ip6/::1/")


class Profile(Struct, frozen=True):
    """What a node does, for other peers."""

    model: str = ""
    tasks: tuple[str, ...] = ()
    role: str = "peer"
    version: str = ""
    name: str = ""
    """What its user calls it; empty if it was not named."""
    listed: bool = True
    """False for a visitor: it does not enter the directory and follows nobody."""


class OwnEntry:
    """This node's entry in the peer directory. Written on the network thread, readable on any."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        profile: Profile,
        run: CurrentRun,
        peers: KnownPeers,
        clock: Callable[[], float],
    ) -> None:
        """No addresses yet."""
        self._settings = settings
        self._identity = identity
        self._run = run
        self._peers = peers
        self._clock = clock
        self._ends: Mapping[str, Sequence[str]] = {}
        self.profile = profile
        self.addresses: tuple[str, ...] = ()
        self.summary: MemberSummary | None = None
        """Told with each renewal of the entry."""

    def locate(self, addresses: tuple[str, ...]) -> bool:
        """Set the node's own addresses; whether they changed."""
        changed = set(addresses) != set(self.addresses)
        self.addresses = addresses
        return changed

    def in_private_run(self) -> bool:
        """Whether the run appears to be confined to this machine or local network.

        While nobody is connected, the last connections decide.
        """
        self._ends = self._peers.observed or self._ends
        named = [address for group in self._peers.bootstrap.values() for address in group]
        settings = self._settings
        return is_private_run([*named, *settings.announce, *settings.listen], self.addresses, self._ends)

    def multiaddrs(self) -> tuple[str, ...]:
        """Addresses at which others can reach this node."""
        return tuple(f"{address}/p2p/{self._identity.peer_id}" for address in self.addresses)

    def sealed(self) -> tuple[bytes, float]:
        """The signed entry and its expiry. Tasks are omitted if it would be too large. The run must be known."""
        record = self._record()
        sealed = seal_peer_record(self._identity, record)
        if len(sealed) > MAX_PEER_RECORD_BYTES or len(msgspec.msgpack.encode(record)) > MAX_PEER_CONTENT_BYTES:
            # Addresses matter more than tasks.
            sealed = seal_peer_record(self._identity, replace(record, tasks=()))
        return sealed, record.expires_at

    def _record(self) -> PeerRecord:
        """A record whose lifetime covers three renewals."""
        assert self._run.manifest is not None
        life_s = min(3 * self._settings.announce_every_s, MAX_PEER_RECORD_LIFE_S / 2)
        return PeerRecord(
            self._run.manifest.run_id,
            self._identity.peer_id,
            self._published()[: MAX_MULTIADDRS // 2],
            self.profile.model,
            self.profile.tasks[:MAX_TOLD_TASKS],
            self.profile.role,
            self.profile.version,
            self._clock() + life_s,
            self.profile.name,
            pulls=True,
            summary=self.summary,
        )

    def _published(self) -> tuple[str, ...]:
        """The addresses that others may know: in a public run those that its members would dial, and no others."""
        found = most_reachable_first(self.multiaddrs())
        if not self.in_private_run():
            return tuple(filter(may_be_public, found))
        # Loopback addresses are useless to other machines. With no others, all peers are on this machine.
        return tuple(address for address in found if not address.startswith(LOOPBACK)) or found
