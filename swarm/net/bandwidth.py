"""Rate limits: token buckets for this node's downloads and uploads, and a minimum rate for its sources."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from swarm.errors import PeerUnreachable
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
"""Names come from strangers, so their number is bounded; the least recently used is forgotten first."""


class SlowHolder(PeerUnreachable):
    """A peer sends too slowly; another one may get its turn."""


class TokenBucket:
    """Rate limit in bytes/s for one direction. Pure but for the clock."""

    def __init__(
        self, bytes_per_s: float | None, clock: Callable[[], float] = time.monotonic, burst_s: float = BURST_S
    ) -> None:
        """None for `bytes_per_s`: no limit. `burst_s` seconds' worth of bytes may go at once."""
        self._rate = bytes_per_s
        self._clock = clock
        self._burst_s = burst_s
        self._settled_at = clock()
        """When all booked bytes are paid for; at most a burst in the past."""

    def spend(self, num_bytes: int) -> float:
        """Book bytes about to be sent; returns the seconds to wait before sending."""
        if self._rate is None:
            return 0.0
        now = self._clock()
        began = max(self._settled_at, now - self._burst_s)
        self._settled_at = began + WITH_HEADERS * num_bytes / self._rate
        return 0.0 if num_bytes <= SHORT_BYTES else max(0.0, began - now)


class Rates:
    """Rate limit by name, with a burst."""

    def __init__(self, per_s: float, at_once: float) -> None:
        """The same limits for every name."""
        self._per_s = per_s
        self._at_once = at_once
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """(tokens left, time)."""

    def take(self, name: str, now: float) -> bool:
        """Whether one more is within the rate; if so, it is counted."""
        left, then = self._left.pop(name, (self._at_once, now))
        left = min(self._at_once, left + (now - then) * self._per_s)
        self._left[name] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > MAX_COUNTED:
            self._left.popitem(last=False)
        return left >= 1


def paced(
    fetch: Fetch, bucket: TokenBucket, runtime: AsyncRuntime, clock: Callable[[], float] = time.monotonic
) -> Fetch:
    """`fetch`, limited by `bucket`. Raises `SlowHolder` if the peer is slower than the minimum rate.

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
                await runtime.sleep(bucket.spend(len(chunk)))
                yield chunk

    return fetch_in_time
