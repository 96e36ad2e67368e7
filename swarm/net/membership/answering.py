"""Handlers for peers' requests, and which peers they serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from swarm.net.bandwidth import LinkLimit
from swarm.net.config import NetworkSettings
from swarm.net.counters import Counters
from swarm.net.membership.current_run import CurrentRun
from swarm.net.membership.greetings import Greetings
from swarm.net.membership.known_peers import KnownPeers
from swarm.net.membership.own_entry import OwnEntry
from swarm.net.records.feed import FEED_PROTOCOL, HELLO_PROTOCOL, Feed, FeedRequest
from swarm.net.records.large import LARGE_PROTOCOL, answer_large
from swarm.net.records.record_store import RecordStore
from swarm.net.records.referrals import Referrals
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL, answer_give, answer_have
from swarm.net.services.manifest import MANIFEST_PROTOCOL
from swarm.net.services.peer_exchange import PEERS_PROTOCOL, answer_peers
from swarm.net.trust.guard import Guard
from swarm.protocols import StreamHandler, Wakeup


class Answering:
    """The handlers by protocol: built-in ones and those added by `serve`. For the network thread."""

    def __init__(
        self,
        settings: NetworkSettings,
        run: CurrentRun,
        peers: KnownPeers,
        own: OwnEntry,
        store: RecordStore,
        feed: Feed,
        greetings: Greetings,
        guard: Guard,
        counters: Counters,
    ) -> None:
        """Answer from the node's own state."""
        self._run = run
        self._peers = peers
        self._own = own
        self._feed = feed
        self._guard = guard
        self._counters = counters
        self.uploads = LinkLimit(settings.upload_bytes_per_s)
        """Pacing of all answers."""
        referrals = Referrals(peers.is_record_of)
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
        """By protocol."""

    def _serve_feed(self, remote: str, request: bytes) -> Iterator[bytes | Wakeup]:
        asked = msgspec.msgpack.decode(request, type=FeedRequest)
        if self._run.manifest is None or asked.run_id != self._run.manifest.run_id or not self._own.profile.listed:
            raise LookupError("this node takes no part in the run")
        return self._feed.follow(remote)

    def handle(self, protocol: str, remote: str, request: bytes) -> Iterator[bytes | Wakeup | None]:
        """Answer a peer's request. Errors are counted and raised again, so the peer is told."""
        try:
            yield from self.handlers[protocol](remote, request)
        except Exception as error:
            self._guard.request_failed(remote, error)
            raise

    def admits(self, peer_id: str) -> bool:
        """Whether requests of this peer are answered."""
        if peer_id in self._peers.banned:
            self._counters.add("banned_streams")
            self.on_banned()
            return False
        return True

    def _fresh_peers(self) -> list[bytes]:
        """Signed records to pass on, this node's own first."""
        own = [self._own.sealed()[0]] if self._run.manifest else []
        return own + self._peers.fresh()
