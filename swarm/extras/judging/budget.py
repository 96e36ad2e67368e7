"""What a judge may be asked in an hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

HOUR_S = 3_600.0
TICK_S = 1.0
"""What is spent within this time is remembered as one."""


class Budget:
    """Requests and tokens of the last hour, those for others' groups apart."""

    def __init__(
        self, requests: int | None, tokens: int | None, strangers_share: float, clock: Callable[[], float]
    ) -> None:
        """Nothing spent. None: no limit."""
        self._requests = requests
        self._tokens = tokens
        self._strangers_share = strangers_share
        self._own = _Hour(clock)
        self._strangers = _Hour(clock)

    def allows(self, requests: int, own: bool) -> bool:
        """Whether there is room for so many more requests.

        Their tokens are known only afterwards: as long as any are left, the requests may be made.
        """
        for limit, before, strangers, more in (
            (self._requests, self._own.requests, self._strangers.requests, requests),
            (self._tokens, self._own.tokens, self._strangers.tokens, 1),
        ):
            if limit is None:
                continue
            if before + strangers + more > limit or (not own and strangers + more > self._strangers_share * limit):
                return False
        return True

    def spend(self, requests: int, tokens: int, own: bool) -> None:
        """Record what was spent."""
        (self._own if own else self._strangers).add(requests, tokens)


class _Hour:
    """Sums over the last hour."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ticks: deque[tuple[float, int, int]] = deque()
        """(time, requests, tokens), oldest first."""

    @property
    def requests(self) -> int:
        self._forget()
        return sum(tick[1] for tick in self._ticks)

    @property
    def tokens(self) -> int:
        self._forget()
        return sum(tick[2] for tick in self._ticks)

    def add(self, requests: int, tokens: int) -> None:
        now = self._clock()
        if self._ticks and now - self._ticks[-1][0] < TICK_S:
            began, more_requests, more_tokens = self._ticks.pop()
            self._ticks.append((began, requests + more_requests, tokens + more_tokens))
        else:
            self._ticks.append((now, requests, tokens))

    def _forget(self) -> None:
        while self._ticks and self._ticks[0][0] <= self._clock() - HOUR_S:
            self._ticks.popleft()
