"""The feed of somebody without a node: a bare daemon that its peers take for a member of the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from swarm.errors import PeerUnreachable
from swarm.net.hivemind.daemon import Daemon
from swarm.net.records.feed import FEED_PROTOCOL, HELLO_PROTOCOL, Feed, FeedRequest, Hello, decode_part, encode
from swarm.net.records.repair import GIVE_PROTOCOL, answer_give, ask_records
from swarm.net.records.stores import RecordStore
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

    def publish(self, record: bytes, *known_to: str) -> None:
        """Add bytes, for all who follow: of this peer's own, or those of others that these peers have."""
        self._feed.add(record, *known_to, is_own=not known_to)

    async def read(
        self, peer_id: str, hear: Callable[[str, bytes], None], lacks: Callable[[bytes], bool] = lambda name: False
    ) -> None:
        """Call `hear(peer_id, record)` for what a member's feed contains, and for named records that this peer
        `lacks`, as long as the member serves it.
        """
        request = encode(FeedRequest(self._run_id))
        with suppress(PeerUnreachable):
            async with aclosing(self._fetch(peer_id, FEED_PROTOCOL, request, 2**40)) as chunks:
                async for chunk in chunks:
                    part = decode_part(chunk)
                    for record in part.records:
                        hear(peer_id, record)
                    if wanted := [each for each in part.named if lacks(each.record_id)]:
                        async for record in ask_records(self._fetch, peer_id, wanted):
                            hear(peer_id, record)

    def _fetch(self, peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        return self._daemon.stream(peer_id, protocol, payload, SILENCE_S, max_bytes)
