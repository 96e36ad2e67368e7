"""Rate limits: token buckets for peers and for this node's link, and a minimum rate for its sources."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing

from swarm.errors import PeerUnreachable
from swarm.lru import LruDict
from swarm.net.records.large import Fetch
from swarm.net.runtime import AsyncRuntime

BURST_S = 0.25
"""Burst: the seconds' worth of bytes that may be sent at once."""
WITH_HEADERS = 1.06
"""Bytes on the link per payload byte: the overhead of TCP, IP and encryption, and a margin. A limit equal to the link's
capacity must not fill its queue, which causes packet loss and seconds of silence.
"""
SHORT_BYTES = 16_384
"""Shorter answers do not wait behind long ones: answers about the run and its peers go out at once."""
MIN_RATE_BYTES_PER_S = 2**18
PATIENCE_S = 10.0
"""Waiting uses patience up; received bytes restore it at `MIN_RATE_BYTES_PER_S`, up to this value."""

MAX_COUNTED = 4_096
"""Names come from untrusted peers, so their number is bounded; the least recently used is forgotten first."""


class SlowHolder(PeerUnreachable):
    """A peer sends too slowly; another one may get its turn."""


class TokenBucket:
    """Rate limit: `burst` tokens, refilled at `per_s`; it may be overdrawn. Pure."""

    def __init__(self, per_s: float, burst: float) -> None:
        """A full bucket."""
        self.per_s = per_s
        self.burst = burst
        self._left = burst
        self._at = -math.inf
        """When `_left` was counted."""

    def left(self, now: float) -> float:
        """Tokens left; negative if it is overdrawn."""
        self._left = min(self.burst, self._left + max(0.0, now - self._at) * self.per_s)
        self._at = now
        return self._left

    def spend(self, amount: float, now: float) -> None:
        """Take tokens, whether there are so many or not."""
        self._left = self.left(now) - amount

    def take(self, now: float) -> bool:
        """Whether a token is left; if so, it is taken."""
        if self.left(now) < 1:
            return False
        self._left -= 1
        return True

    def wait_s(self, now: float) -> float:
        """Seconds until the bucket is no longer overdrawn."""
        return max(0.0, -self.left(now) / self.per_s)


class RatePerName:
    """The same rate limit for each of many names."""

    def __init__(self, per_s: float, burst: float, capacity: int = MAX_COUNTED) -> None:
        """All buckets are full."""
        self._per_s = per_s
        self._burst = burst
        self._buckets = LruDict[Hashable, TokenBucket](capacity)

    def __len__(self) -> int:
        """Names remembered."""
        return len(self._buckets)

    def bucket(self, name: Hashable) -> TokenBucket:
        """The bucket of a name."""
        if (bucket := self._buckets.get(name)) is None:
            bucket = self._buckets[name] = TokenBucket(self._per_s, self._burst)
        return bucket

    def take(self, name: Hashable, now: float) -> bool:
        """Whether one more is within the rate; if so, it is counted."""
        return self.bucket(name).take(now)


class LinkLimit:
    """Rate limit in bytes/s for one direction of this node's link. Pure but for the clock."""

    def __init__(
        self, bytes_per_s: float | None, clock: Callable[[], float] = time.monotonic, burst_s: float = BURST_S
    ) -> None:
        """None for `bytes_per_s`: no limit. `burst_s` seconds' worth of bytes may go at once, though not at first."""
        self._clock = clock
        self._bucket: TokenBucket | None = None
        if bytes_per_s is not None:
            self._bucket = TokenBucket(bytes_per_s, burst_s * bytes_per_s)
            self._bucket.spend(burst_s * bytes_per_s, clock())

    def spend(self, num_bytes: int) -> float:
        """Book bytes about to be sent; returns the seconds to wait before sending."""
        if self._bucket is None:
            return 0.0
        now = self._clock()
        wait_s = self._bucket.wait_s(now)
        self._bucket.spend(WITH_HEADERS * num_bytes, now)
        return 0.0 if num_bytes <= SHORT_BYTES else wait_s


def paced(fetch: Fetch, limit: LinkLimit, runtime: AsyncRuntime, clock: Callable[[], float] = time.monotonic) -> Fetch:
    """`fetch`, within `limit`. Raises `SlowHolder` if the peer is slower than the minimum rate.

    Time during which this node itself delays the peer does not count.
    """

    async def fetch_in_time(peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        patience_s = PATIENCE_S
        async with aclosing(fetch(peer_id, protocol, payload, max_bytes)) as chunks:
            while True:
                began = clock()
                try:
                    async with runtime.timeout(patience_s):
                        chunk = await anext(chunks, None)
                except TimeoutError as error:
                    raise SlowHolder(f"{peer_id} sends less than {MIN_RATE_BYTES_PER_S} bytes/s") from error
                if chunk is None:
                    return
                restored_s = WITH_HEADERS * len(chunk) / MIN_RATE_BYTES_PER_S
                patience_s = min(PATIENCE_S, patience_s - (clock() - began) + restored_s)
                await runtime.sleep(limit.spend(len(chunk)))
                yield chunk

    return fetch_in_time
