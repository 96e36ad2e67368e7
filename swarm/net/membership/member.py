"""A node as a member of its run: the state that survives sessions, for all network libraries.

Each part depends only on those above it:

run         which run this is               manifest
peers       the other nodes                 connected, known, remembered, banned
own         this node's own entry           addresses, profile, signed record
records     incoming and outgoing records   inbox, outbox, record store, announced large records, budgets
greetings   who takes part in the run       hellos of peers
answering   peers' requests                 handlers by protocol

Written on the network thread, readable on any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from swarm.lru import LruDict
from swarm.net.addresses.dial import Backoff, is_private_run, may_be_public
from swarm.net.addresses.nat import most_reachable_first, reachability
from swarm.net.bandwidth import LinkLimit
from swarm.net.config import NetworkSettings
from swarm.net.guard import Complaints, Counters, Guard
from swarm.net.membership.known_peers import CurrentRun, KnownPeers
from swarm.net.membership.traffic import RecordTraffic, Versions
from swarm.net.records.feed import FEED_PROTOCOL, HELLO_PROTOCOL, FeedRequest, Hello, decode_hello, encode
from swarm.net.records.identity import Identity
from swarm.net.records.large import LARGE_PROTOCOL, Referrals, answer_large
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL, answer_give, answer_have
from swarm.net.records.wire import (
    MAX_PEER_CONTENT_BYTES,
    MAX_PEER_RECORD_BYTES,
    MAX_PEER_RECORD_LIFE_S,
    SealedManifest,
    seal_peer_record,
)
from swarm.net.services.requests import MANIFEST_PROTOCOL, PEERS_PROTOCOL, answer_peers
from swarm.net.services.streams import StreamAdmission
from swarm.protocols import StreamHandler, Wakeup
from swarm.types import MAX_MULTIADDRS, MAX_TOLD_TASKS, MemberSummary, NetworkStatus, PeerRecord

LOOPBACK = ("/ip4/127.", "/ip6/::1/")
FORGOTTEN_AFTER_S = 30.0
"""A peer that was not connected for this time is greeted again. Longer than it takes to notice its connection."""
MAX_GREETED = 4_096
RETRY_S = 5.0


class Member:
    """All parts, with their counters and status."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        profile: Profile,
        manifest: SealedManifest | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A node that has not started; with `manifest` it is in that run from the start.

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
        self.own = OwnEntry(self, profile)
        self.versions = Versions()
        self.records = RecordTraffic(
            settings, identity, self.run, self.peers, self.complaints, self.counters, self.versions, clock
        )
        self.greetings = Greetings(self.run, profile.listed)
        self.answering = Answering(self)
        self.detail = "not started"
        """Progress of the network, in words."""

    def reachability(self) -> str | None:
        """A description of this node's reachability for other machines; None if unknown."""
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


class Profile(Struct, frozen=True):
    """A node's description of itself for other peers."""

    model: str = ""
    tasks: tuple[str, ...] = ()
    role: str = "peer"
    version: str = ""
    name: str = ""
    """The user's name for it; may be empty."""
    listed: bool = True
    """False for a visitor: it neither enters the directory nor follows peers."""


class OwnEntry:
    """This node's entry in the peer directory. Written on the network thread, readable on any."""

    def __init__(self, member: Member, profile: Profile) -> None:
        self._member = member
        self._ends: Mapping[str, Sequence[str]] = {}
        self.profile = profile
        self.addresses: tuple[str, ...] = ()
        self.summary: MemberSummary | None = None
        self.measured = b""
        """Both are published with each renewal of the entry."""

    def locate(self, addresses: tuple[str, ...]) -> bool:
        """Set the node's own addresses; whether they changed."""
        changed = set(addresses) != set(self.addresses)
        self.addresses = addresses
        return changed

    def in_private_run(self) -> bool:
        """Whether the run appears to be confined to this machine or local network.

        While no peer is connected, the last connections decide.
        """
        self._ends = self._member.peers.observed or self._ends
        named = [address for group in self._member.peers.bootstrap.values() for address in group]
        settings = self._member.settings
        return is_private_run([*named, *settings.announce, *settings.listen], self.addresses, self._ends)

    def multiaddrs(self) -> tuple[str, ...]:
        """Addresses at which others can reach this node."""
        return tuple(f"{address}/p2p/{self._member.identity.peer_id}" for address in self.addresses)

    def sealed(self) -> tuple[bytes, float]:
        """The signed entry and its expiry. Tasks, and then what it measured, are omitted if it would be too large.
        The run must be known."""
        record = self._record()
        for smaller in ({}, {"tasks": ()}, {"tasks": (), "measured": b""}):  # addresses matter more
            sealed = seal_peer_record(self._member.identity, kept := replace(record, **smaller))
            if len(sealed) <= MAX_PEER_RECORD_BYTES and len(msgspec.msgpack.encode(kept)) <= MAX_PEER_CONTENT_BYTES:
                break
        return sealed, record.expires_at

    def _record(self) -> PeerRecord:
        """A record whose lifetime covers three renewals."""
        assert self._member.run.manifest is not None
        life_s = min(3 * self._member.settings.announce_every_s, MAX_PEER_RECORD_LIFE_S / 2)
        return PeerRecord(
            self._member.run.manifest.run_id,
            self._member.identity.peer_id,
            self._published()[: MAX_MULTIADDRS // 2],
            self.profile.model,
            self.profile.tasks[:MAX_TOLD_TASKS],
            self.profile.role,
            self.profile.version,
            self._member.clock() + life_s,
            self.profile.name,
            pulls=True,
            summary=self.summary,
            measured=self.measured,
        )

    def _published(self) -> tuple[str, ...]:
        """The addresses for others: in a public run only those that its members would dial."""
        found = most_reachable_first(self.multiaddrs())
        if not self.in_private_run():
            return tuple(filter(may_be_public, found))
        # Loopback addresses are useless to other machines. With no others, all peers are on this machine.
        return tuple(address for address in found if not address.startswith(LOOPBACK)) or found


class _Greeted:
    """One peer's greeting, and whether it has been answered as a member."""

    def __init__(self, now: float) -> None:
        self.takes_part = False
        self.knows_us = False
        self.seen_at = now


class Greetings:
    """Which connected peers take part in the run. Written on the network thread, readable on any.

    Each connection is greeted once, by an end that knows the run.
    """

    def __init__(self, run: CurrentRun, takes_part: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """No greetings yet. `takes_part`: whether this node itself follows others and can be followed."""
        self._run = run
        self._takes_part = takes_part
        self._clock = clock
        self._greeted = LruDict[str, _Greeted](MAX_GREETED)
        self._failed = Backoff(RETRY_S)
        self.on_change: Callable[[], None] = lambda: None
        """Called when a peer starts or stops taking part in the run."""

    def members(self) -> frozenset[str]:
        """Peers that said that they take part in this run."""
        return frozenset(peer_id for peer_id, greeted in tuple(self._greeted.items()) if greeted.takes_part)

    def own(self) -> bytes:
        """This node's greeting."""
        run_id = self._run.manifest.run_id if self._run.manifest else ""
        return encode(Hello(run_id, self._takes_part))

    def answer(self, remote: str, request: bytes) -> bytes:
        """Process a peer's greeting and return this node's. Raises as `decode_hello`."""
        self.heard(remote, request, knows_us=self._run.manifest is not None)
        return self.own()

    def heard(self, peer_id: str, content: bytes, *, knows_us: bool) -> None:
        """Process a peer's greeting; `knows_us`: it has this node's. Raises as `decode_hello`."""
        hello = decode_hello(content)
        # Before this node knows its own run it accepts any: it greets the peer again afterwards.
        own = self._run.manifest.run_id if self._run.manifest else hello.run_id
        takes_part = hello.takes_part and hello.run_id == own != ""
        greeted = self._greeted.setdefault(peer_id, _Greeted(self._clock()))
        greeted.knows_us = greeted.knows_us or knows_us
        greeted.seen_at = self._clock()
        self._failed.succeeded(peer_id)
        if greeted.takes_part != takes_part:
            greeted.takes_part = takes_part
            self.on_change()

    def failed(self, peer_id: str) -> None:
        """A peer did not answer; it is asked again later, with a growing pause."""
        self._failed.failed(peer_id, self._clock())

    def due(self, connected: frozenset[str]) -> list[str]:
        """Connected peers that do not have this node's greeting."""
        now = self._clock()
        for peer_id in connected & self._greeted.keys():
            self._greeted[peer_id].seen_at = now
        for peer_id, greeted in list(self._greeted.items()):
            if now - greeted.seen_at > FORGOTTEN_AFTER_S:
                del self._greeted[peer_id]
        known = {peer_id for peer_id, greeted in self._greeted.items() if greeted.knows_us}
        return [peer_id for peer_id in connected - known if self._failed.wait_s(peer_id, now) <= 0]


class Answering:
    """A `Gatekeeper` with handlers by protocol: built-in ones and those added by `serve`. For the network thread."""

    def __init__(self, member: Member) -> None:
        """Answer from the node's own state, all of which exists by now."""
        self._member = member
        run, store, feed, greetings = member.run, member.records.store, member.records.feed, member.greetings
        self.pace = LinkLimit(member.settings.upload_bytes_per_s).spend
        self.admission = StreamAdmission()
        """Replaced by each session."""
        referrals = Referrals(member.peers.is_record_of)
        self.on_banned: Callable[[], None] = lambda: None
        """Called when a banned peer turns out to be connected."""
        self.handlers: dict[str, StreamHandler] = {
            MANIFEST_PROTOCOL: lambda remote, request: iter([run.sealed or b""]),
            HAVE_PROTOCOL: lambda remote, request: iter([answer_have(store, request)]),
            GIVE_PROTOCOL: lambda remote, request: answer_give(store, feed, request),
            HELLO_PROTOCOL: lambda remote, request: iter([greetings.answer(remote, request)]),
            FEED_PROTOCOL: self._serve_feed,
            LARGE_PROTOCOL: lambda remote, request: answer_large(store, referrals, remote, request),
            PEERS_PROTOCOL: lambda remote, request: iter([answer_peers(self._fresh_peers())]),
        }
        """Handlers by protocol."""

    def _serve_feed(self, remote: str, request: bytes) -> Iterator[bytes | Wakeup]:
        asked, manifest = msgspec.msgpack.decode(request, type=FeedRequest), self._member.run.manifest
        if manifest is None or asked.run_id != manifest.run_id or not self._member.own.profile.listed:
            raise LookupError("this node takes no part in the run")
        return self._member.records.feed.follow(remote)

    def handle(self, protocol: str, remote: str, request: bytes) -> Iterator[bytes | Wakeup | None]:
        """Answer a peer's request. Errors are counted and raised again, and reported to the peer."""
        try:
            yield from self.handlers[protocol](remote, request)
        except Exception as error:
            self._member.guard.request_failed(remote, error)
            raise

    def admits(self, peer_id: str) -> bool:
        """Whether requests of this peer are answered."""
        if peer_id in self._member.peers.banned:
            self._member.counters.add("banned_streams")
            self.on_banned()
            return False
        return True

    def _fresh_peers(self) -> list[bytes]:
        """Signed records to pass on, this node's own first."""
        own = [self._member.own.sealed()[0]] if self._member.run.manifest else []
        return own + self._member.peers.fresh()
