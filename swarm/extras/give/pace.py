"""How many requests are in flight at a server that does not say how many it can take.

One more for each round of replies as the fastest, fewer once the server is busy or replies become slow:
additive increase, multiplicative decrease. Servers that queue, as many on a desktop do, thus keep a short queue.
"""

from __future__ import annotations

FIRST = 2.0
SLOWER = 2.0
"""Times the least time a token up to which more requests are tried."""
SLOW = 4.0
"""Times the least time a token from which there are fewer."""
LEAST_S = 0.1
"""Shorter replies say nothing of the load."""
SMOOTHING = 0.2
FORGETTING = 1.001
"""What was once the least rises by this with each reply: a server may become slower for good."""
MAX_PAUSE_S = 30.0


class Pace:
    """Pure: times are the caller's."""

    def __init__(self, most: int) -> None:
        """At most `most` requests."""
        self._most = float(most)
        self._limit = min(FIRST, self._most)
        self._least: float | None = None
        self._mean = 0.0
        self._since_decrease = 0
        self._setbacks = 0
        self.resumes_at = 0.0
        """Before this time no request begins."""

    @property
    def limit(self) -> int:
        """Requests in flight."""
        return int(self._limit)

    def reply(self, seconds: float, tokens: float) -> None:
        """A reply took `seconds` for a completion of so many tokens."""
        self._setbacks = 0
        self.resumes_at = 0.0
        per_token = max(seconds, LEAST_S) / max(1.0, tokens)
        if self._least is None:
            self._least = self._mean = per_token
        self._least = min(per_token, FORGETTING * self._least)
        self._mean += SMOOTHING * (per_token - self._mean)
        self._since_decrease += 1
        if self._mean <= SLOWER * self._least:
            self._limit = min(self._most, self._limit + 1 / self._limit)
        elif self._mean > SLOW * self._least:
            self._decrease(0.7)

    def setback(self, now: float, retry_after_s: float = 0.0) -> None:
        """The server was busy, or could not be reached: half as many requests, after a pause that grows."""
        self._decrease(0.5)
        if now < self.resumes_at:
            return  # of the same moment
        pause_s = min(MAX_PAUSE_S, 0.5 * 2.0 ** min(self._setbacks, 16))
        self._setbacks += 1
        self.resumes_at = now + max(pause_s, retry_after_s)

    def _decrease(self, factor: float) -> None:
        """Not before the replies to all requests of the last decrease."""
        if self._since_decrease >= self.limit or factor * self._limit < 1 or self._since_decrease == 0:
            self._limit = max(1.0, factor * self._limit)
            self._since_decrease = 0
