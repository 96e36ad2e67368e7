"""How fast bytes go in and out: token buckets for what this node takes and gives, and a floor for who gives to it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from swarm.errors import PeerUnreachable
from swarm.net.records.large import Fetch
from swarm.net.waits import Waits

BURST_S = 0.25
"""So much of a second's bytes may go at once."""
WITH_HEADERS = 1.06
"""Bytes on the link for one of ours: what TCP, IP and encryption add, and a little room. A limit that is what the link
carries must not fill its queue: that ends in lost packets and seconds of silence.
"""
SHORT_BYTES = 16_384
"""Answers up to here do not queue behind the long ones: who is asked for the run or for peers answers at once."""
MIN_RATE_BYTES_PER_S = 2**18
PATIENCE_S = 10.0
"""Waiting uses patience up, and what comes restores it at the rate above, up to this."""

MAX_COUNTED = 4_096
"""Names are strangers': the one heard of longest ago is forgotten for one more."""


class SlowHolder(PeerUnreachable):
    """A peer gives so slowly that another may have the turn."""


class TokenBucket:
    """Bytes a second in one direction. Pure but for the clock."""

    def __init__(
        self, bytes_per_s: float | None, clock: Callable[[], float] = time.monotonic, burst_s: float = BURST_S
    ) -> None:
        """Without `bytes_per_s` nothing ever waits; `burst_s` of a second's bytes may go at once."""
        self._rate = bytes_per_s
        self._clock = clock
        self._burst_s = burst_s
        self._settled_at = clock()
        """When all bytes booked so far are paid for; in the past by no more than a burst."""

    def spend(self, num_bytes: int) -> float:
        """Book bytes that are about to go; seconds to wait before they may."""
        if self._rate is None:
            return 0.0
        now = self._clock()
        began = max(self._settled_at, now - self._burst_s)
        self._settled_at = began + WITH_HEADERS * num_bytes / self._rate
        return 0.0 if num_bytes <= SHORT_BYTES else max(0.0, began - now)


class Rates:
    """So many a second by name, and some at once."""

    def __init__(self, per_s: float, at_once: float) -> None:
        """The same for every name."""
        self._per_s = per_s
        self._at_once = at_once
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """(what is left, when that was)."""

    def take(self, name: str, now: float) -> bool:
        """Whether one more is within the rate; then it is counted."""
        left, then = self._left.pop(name, (self._at_once, now))
        left = min(self._at_once, left + (now - then) * self._per_s)
        self._left[name] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > MAX_COUNTED:
            self._left.popitem(last=False)
        return left >= 1


def paced(fetch: Fetch, bucket: TokenBucket, waits: Waits, clock: Callable[[], float] = time.monotonic) -> Fetch:
    """`fetch`, no faster than `bucket`. Raises `SlowHolder` when the peer is slower than it must be.

    Time that this node itself keeps the peer waiting does not count.
    """

    async def fetch_in_time(peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        patience_s = PATIENCE_S
        async with aclosing(fetch(peer_id, protocol, payload, max_bytes)) as chunks:
            while True:
                began = clock()
                try:
                    async with waits.within(patience_s):
                        chunk = await anext(chunks, None)
                except TimeoutError as error:
                    raise SlowHolder(f"{peer_id} gives less than {MIN_RATE_BYTES_PER_S} bytes/s") from error
                if chunk is None:
                    return
                restored_s = WITH_HEADERS * len(chunk) / MIN_RATE_BYTES_PER_S
                patience_s = min(PATIENCE_S, patience_s - (clock() - began) + restored_s)
                await waits.sleep(bucket.spend(len(chunk)))
                yield chunk

    return fetch_in_time
