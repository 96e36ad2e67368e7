"""What a node tells others about itself: where it is reached, and what it does."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from swarm.net.addresses.nat import to_tell
from swarm.net.config import NetworkSettings
from swarm.net.membership.current_run import CurrentRun
from swarm.net.records.identity import Identity
from swarm.net.records.wire import MAX_MULTIADDRS, MAX_PEER_RECORD_BYTES, MAX_PEER_RECORD_LIFE_S, seal_peer_record
from swarm.types import PeerRecord

LOOPBACK = ("/ip4/127.", "/ip6/::1/")


class Profile(Struct, frozen=True):
    """What a node does, for others to read."""

    model: str = ""
    tasks: tuple[str, ...] = ()
    role: str = "peer"
    version: str = ""
    listed: bool = True
    """False for a visitor that only looks: it enters itself in no directory, and hears no gossip."""


class OwnEntry:
    """This node's entry in the directory of peers. Written on the network thread, read on any."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        profile: Profile,
        run: CurrentRun,
        clock: Callable[[], float],
    ) -> None:
        """No addresses yet."""
        self._settings = settings
        self._identity = identity
        self._run = run
        self._clock = clock
        self.profile = profile
        self.addresses: tuple[str, ...] = ()

    def locate(self, addresses: tuple[str, ...]) -> bool:
        """Note the node's own addresses; whether they changed."""
        changed = set(addresses) != set(self.addresses)
        self.addresses = addresses
        return changed

    def multiaddrs(self) -> tuple[str, ...]:
        """Addresses under which others reach this node."""
        return tuple(f"{address}/p2p/{self._identity.peer_id}" for address in self.addresses)

    def sealed(self) -> tuple[bytes, float]:
        """The entry, signed, and when it expires; too many tasks are left out. The run must be known."""
        record = self._record()
        sealed = seal_peer_record(self._identity, record)
        if len(sealed) > MAX_PEER_RECORD_BYTES:
            # Where a peer is matters more than what it does.
            sealed = seal_peer_record(self._identity, replace(record, tasks=()))
        return sealed, record.expires_at

    def _record(self) -> PeerRecord:
        """Good for three renewals."""
        assert self._run.manifest is not None
        # An address of this machine only means nothing to others, unless they are on it too: then any will do.
        outward = tuple(address for address in to_tell(self.multiaddrs()) if not address.startswith(LOOPBACK))
        life_s = min(3 * self._settings.announce_every_s, MAX_PEER_RECORD_LIFE_S / 2)
        return PeerRecord(
            self._run.manifest.run_id,
            self._identity.peer_id,
            (outward or self.multiaddrs())[: MAX_MULTIADDRS // 2],
            self.profile.model,
            self.profile.tasks,
            self.profile.role,
            self.profile.version,
            self._clock() + life_s,
        )
