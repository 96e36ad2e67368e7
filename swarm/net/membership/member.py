"""A node as a member of its run: what outlives a session, whichever library it runs on.

Each part knows only those above it:

run         which run this is               manifest, topic
peers       who else there is               connected, heard of, met earlier, banned
own         what this node says of itself   addresses, profile, signed entry
records     what comes in and goes out      inbox, outbox, shelf, announced large records, budgets
answering   what peers ask                  handlers by protocol

Written on the network thread, read on any.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from swarm.net.addresses.nat import reachability
from swarm.net.config import NetworkSettings
from swarm.net.counters import Counters
from swarm.net.membership.answering import Answering
from swarm.net.membership.current_run import CurrentRun
from swarm.net.membership.known_peers import KnownPeers
from swarm.net.membership.own_entry import OwnEntry, Profile
from swarm.net.membership.traffic import RecordTraffic
from swarm.net.records.identity import Identity
from swarm.net.trust.complaints import Complaints
from swarm.net.trust.guard import Guard
from swarm.types import NetworkStatus


class Member:
    """The parts, and what is counted and said of all of them."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        profile: Profile,
        manifest: bytes | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A node that has not started; with `manifest` (sealed) it is in that run already.

        Raises `ConfigError` for an address that names no peer, `Refusal` for a bad manifest.
        """
        self.settings = settings
        self.identity = identity
        self.clock = clock
        self.counters = Counters()
        self.complaints = Complaints(self.counters)
        self.guard = Guard(self.counters, self.complaints.add)
        self.run = CurrentRun(settings.run_id, manifest)
        self.peers = KnownPeers(settings, identity.peer_id, self.run, self.counters, clock)
        self.own = OwnEntry(settings, identity, profile, self.run, clock)
        self.records = RecordTraffic(settings, identity, self.run, self.peers, self.complaints, self.counters)
        self.answering = Answering(
            settings, self.run, self.peers, self.own, self.records.shelf, self.guard, self.counters
        )
        self.detail = "not started"
        """How far the network has come, in words."""

    def reachability(self) -> str | None:
        """In words, whether strangers can reach this node; None when nothing tells."""
        return reachability(self.settings, self.peers.bootstrap, self.own.addresses, self.peers.connected)

    def status(self) -> NetworkStatus:
        """The network as it is now."""
        run_id = self.run.manifest.run_id if self.run.manifest else None
        return NetworkStatus(run_id, tuple(sorted(self.peers.in_run)), self.peers.alone_since, self.detail)
