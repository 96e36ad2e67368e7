from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, strategies as st

from swarm.net.bandwidth import (
    BURST_S,
    MIN_RATE_BYTES_PER_S,
    PATIENCE_S,
    SHORT_BYTES,
    WITH_HEADERS,
    LinkLimit,
    RatePerName,
    SlowHolder,
    TokenBucket,
    paced,
)
from swarm.net.runtime import AsyncioSignal

CHUNK = 2**18


class Clock:
    """Time that passes only where a test says so; also how a loop waits in it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def signal(self) -> AsyncioSignal:
        return AsyncioSignal()

    async def sleep(self, duration_s: float) -> None:
        self.now += duration_s

    @asynccontextmanager
    async def timeout(self, timeout_s: float) -> AsyncIterator[None]:
        began = self.now
        yield
        if self.now - began > timeout_s:
            self.now = began + timeout_s
            raise TimeoutError


def test_a_bucket_refills_up_to_its_burst() -> None:
    bucket = TokenBucket(10.0, 20.0)
    assert bucket.left(99.0) == 20.0
    bucket.spend(20, 100.0)
    assert bucket.wait_s(100.0) == 0.0
    bucket.spend(10, 100.0)
    assert bucket.wait_s(100.0) == pytest.approx(1.0) and bucket.left(99.0) == -10.0, "a clock that was set back"
    bucket.spend(1, 102.0)
    assert bucket.wait_s(102.0) == 0.0 and bucket.left(1e9) == 20.0


def test_each_name_has_its_rate_and_the_number_of_names_is_bounded() -> None:
    rates = RatePerName(1.0, 3.0, capacity=2)
    assert [rates.take("a", 0.0) for _ in range(4)] == [True] * 3 + [False]
    assert rates.take("b", 0.0) and not rates.take("a", 0.5) and rates.take("a", 1.0)
    assert rates.take("c", 1.0) and len(rates) == 2
    assert [rates.take("a", 1.0), rates.take("b", 1.0)] == [False, True]


@given(st.lists(st.tuples(st.integers(1, 300_000), st.floats(0, 1)), min_size=1, max_size=50))
def test_no_more_goes_than_the_rate_allows(sends: list[tuple[int, float]]) -> None:
    clock = Clock()
    bucket = LinkLimit(100_000.0, clock)
    began, sent = clock.now, 0
    for num_bytes, pause_s in sends:
        wait_s = bucket.spend(num_bytes)
        assert wait_s == 0 or num_bytes > SHORT_BYTES
        clock.now += wait_s
        if num_bytes > SHORT_BYTES:
            # What was booked before this one has been paid for by now.
            assert sent <= 100_000 * (clock.now - began + BURST_S) + 1
        sent += num_bytes
        clock.now += pause_s


def test_the_rate_is_used_in_full_and_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    bucket = LinkLimit(1_000_000.0, clock)
    clock.now += 3_600
    began = clock.now
    for _ in range(40):
        clock.now += bucket.spend(100_000)
    assert clock.now - began == pytest.approx(3.9 * WITH_HEADERS - BURST_S)
    assert bucket.spend(SHORT_BYTES) == 0, "a short answer does not queue"
    assert LinkLimit(None, clock).spend(2**40) == 0


def fetch_all(clock: Clock, gaps_s: Sequence[float], bytes_per_s: float | None = None) -> list[float]:
    """When the chunks of a peer come that lets so much time pass before each."""

    async def fetch(peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        for gap_s in gaps_s:
            clock.now += gap_s
            yield bytes(CHUNK)

    async def run() -> list[float]:
        began, came = clock.now, []
        async for _ in paced(fetch, LinkLimit(bytes_per_s, clock), clock, clock)("peer", "/x", b"", 2**30):
            came.append(clock.now - began)
        return came

    return asyncio.run(run())


def test_a_peer_that_is_fast_enough_may_also_pause() -> None:
    gap_s = CHUNK / MIN_RATE_BYTES_PER_S
    assert len(fetch_all(Clock(), [gap_s] * 1_000)) == 1_000
    assert len(fetch_all(Clock(), [PATIENCE_S - 1] + [0.1] * 20 + [PATIENCE_S - 1])) == 22


@pytest.mark.parametrize("gaps_s", [[60.0], [0.0] * 1_000 + [60.0] * 9, [1.5] * 60])
def test_a_peer_that_is_too_slow_is_given_up_whatever_it_gave_before(gaps_s: list[float]) -> None:
    clock = Clock()
    began = clock.now
    with pytest.raises(SlowHolder, match="peer sends less than"):
        fetch_all(clock, gaps_s)
    assert clock.now - began < 40


def test_time_in_which_this_node_keeps_the_peer_waiting_does_not_count() -> None:
    came = fetch_all(Clock(), [0.0] * 40, CHUNK / 2)
    assert len(came) == 40 and came[-1] == pytest.approx(2 * 39 * WITH_HEADERS)
