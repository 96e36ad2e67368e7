"""A node as a member of its run: the state that survives sessions, for both network libraries.

Each part depends only on those above it:

run         which run this is               manifest
peers       the other nodes                 connected, known, remembered, banned
own         this node's own entry           addresses, profile, signed record
records     incoming and outgoing records   inbox, outbox, record store, announced large records, budgets
greetings   who takes part in the run       what peers said of themselves
answering   peers' requests                 handlers by protocol

Written on the network thread, readable on any.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from swarm.net.addresses.nat import reachability
from swarm.net.config import NetworkSettings
from swarm.net.counters import Counters
from swarm.net.membership.answering import Answering
from swarm.net.membership.current_run import CurrentRun
from swarm.net.membership.greetings import Greetings
from swarm.net.membership.known_peers import KnownPeers
from swarm.net.membership.own_entry import OwnEntry, Profile
from swarm.net.membership.traffic import RecordTraffic
from swarm.net.membership.versions import Versions
from swarm.net.records.identity import Identity
from swarm.net.trust.complaints import Complaints
from swarm.net.trust.guard import Guard
from swarm.types import NetworkStatus


class Member:
    """All parts, with their counters and status."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        profile: Profile,
        manifest: bytes | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A node that has not started; with `manifest` (sealed) it is in that run from the start.

        Raises `ConfigError` for an address without a valid peer id, `Refusal` for a bad manifest.
        """
        self.settings = settings
        self.identity = identity
        self.clock = clock
        self.counters = Counters()
        self.complaints = Complaints(self.counters)
        self.guard = Guard(self.counters, self.complaints.add)
        self.run = CurrentRun(settings.run_id, manifest)
        self.peers = KnownPeers(settings, identity.peer_id, self.run, self.counters, clock)
        self.own = OwnEntry(settings, identity, profile, self.run, self.peers, clock)
        self.versions = Versions()
        self.records = RecordTraffic(
            settings, identity, self.run, self.peers, self.complaints, self.counters, self.versions, clock
        )
        self.greetings = Greetings(self.run, profile.listed)
        self.answering = Answering(
            settings,
            self.run,
            self.peers,
            self.own,
            self.records.store,
            self.records.feed,
            self.greetings,
            self.guard,
            self.counters,
        )
        self.detail = "not started"
        """Progress of the network, in words."""

    def reachability(self) -> str | None:
        """A description of this node's reachability for strangers; None if unknown."""
        return reachability(self.settings, self.peers.bootstrap, self.own.addresses, self.peers.connected)

    def status(self) -> NetworkStatus:
        """Current state of the network."""
        run_id = self.run.manifest.run_id if self.run.manifest else None
        connected = tuple(sorted(self.peers.in_run))
        return NetworkStatus(
            run_id,
            connected,
            self.peers.alone_since,
            self.detail,
            self.versions.describe(),
            len(self.peers.in_run & self.peers.pulling()),
            len(self.peers.in_run & self.peers.known.keys()),
            self.records.offer_rate.per_s(),
        )
