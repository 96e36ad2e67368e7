"""The feed of somebody without a node: a bare daemon that its peers take for a member of the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, suppress

from swarm.errors import PeerUnreachable
from swarm.net.hivemind.daemon.process import Daemon
from swarm.net.records.feed import FEED_PROTOCOL, HELLO_PROTOCOL, Feed, FeedRequest, Hello, decode_part, encode
from swarm.net.records.record_store import RecordStore
from swarm.net.records.repair import GIVE_PROTOCOL, answer_give
from swarm.protocols import StreamHandler

TIMEOUT_S = 10.0
SILENCE_S = 60.0


class OwnFeed:
    """Serves any bytes as a feed, and reads others' feeds. For the daemon's loop."""

    def __init__(self, daemon: Daemon) -> None:
        """Takes part in no run yet."""
        self._daemon = daemon
        self._feed = Feed()
        self._run_id = ""

    async def take_part(self, run_id: str) -> None:
        """Claim to be a member of a run: to all who greet this peer, and to those connected now."""
        if self._run_id == run_id:
            return
        self._run_id = run_id
        hello, store = encode(Hello(run_id, takes_part=True)), RecordStore(1, 1, 1.0)
        handlers: dict[str, StreamHandler] = {
            HELLO_PROTOCOL: lambda remote, request: iter([hello]),
            FEED_PROTOCOL: lambda remote, request: self._feed.follow(remote),
            GIVE_PROTOCOL: lambda remote, request: answer_give(store, self._feed, request),
        }
        for protocol in handlers.keys() - self._daemon.incoming.handlers.keys():
            await self._daemon.answer(protocol, handlers[protocol])
        for peer_id in await self._daemon.connected():
            with suppress(PeerUnreachable):
                await self._daemon.call(peer_id, HELLO_PROTOCOL, hello, TIMEOUT_S)

    def publish(self, record: bytes) -> None:
        """Add bytes, for all who follow."""
        self._feed.add(record, is_own=True)

    async def read(self, peer_id: str, hear: Callable[[str, bytes], None]) -> None:
        """Call `hear(peer_id, record)` for what a member's feed contains, as long as the member serves it."""
        request = encode(FeedRequest(self._run_id))
        with suppress(PeerUnreachable):
            async with aclosing(self._daemon.stream(peer_id, FEED_PROTOCOL, request, SILENCE_S, 2**40)) as chunks:
                async for chunk in chunks:
                    for record in decode_part(chunk).records:
                        hear(peer_id, record)
