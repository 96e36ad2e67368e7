"""The broadcast plan: chains if the learner's uplink exceeds a worker's, a tree if not.

Every node gets the whole snapshot in one stream of R bytes/s. A node with uplink u can feed floor(u / R) others at that
rate; R is the fastest rate that gives enough slots for all. With uplinks U = m b of the learner and b of the workers,
R is b: the learner starts m chains in which each node feeds one. With U below b, R is U: the learner feeds one, and
each worker floor(b / U). Workers that can feed most get the slots nearest to the learner.

Source: arXiv:2602.02192, section 4.2 (chains). Here every chain carries the whole snapshot, so that a node has one
source and can continue from any other.

`Placement` is the learner's side: which workers have a slot, and which of them failed to feed others. Only the workers
that a source should have fed report that it delivered nothing, and they may lie. So one report moves the worker that
made it, and takes nothing from its source but the slots that others can fill as well; a source loses its children when
several of them agree; and a worker that reports often is not believed and feeds no one itself.

Pure but for the clock; the caller holds a lock.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from swarm.net.addresses.dial import Backoff
from swarm.net.config import SnapshotSettings
from swarm.net.guard import Counters
from swarm.net.records.identity import MAX_PEER_ID_CHARS

logger = logging.getLogger(__name__)

MAX_CHILDREN = 16
MAX_SOURCES = 4
"""Sources in a slot: the nearest nodes above it, and the learner."""
ROUNDING = 1e-6
MAX_BYTES_PER_S = 1e15

PeerId = Annotated[str, Meta(max_length=MAX_PEER_ID_CHARS)]
ClaimedRate = Annotated[float, Meta(ge=2**18, le=MAX_BYTES_PER_S)]
"""Link rates that a peer may claim. The minimum is that of the settings: a lower one would slow down all."""
FORGET_AFTER_POLLS = 3
"""A worker that has not asked for this many times `poll_s` gets no slot in the next plan."""
MAX_WORKERS = 256
"""Workers with a slot. A new one displaces the one that asked longest ago among those without a broadcast yet."""
IDLE_S, MAX_IDLE_S = 60.0, 3_600.0
"""A worker that failed to feed its children is excluded as a source for this time, twice as long each time."""
NUM_REPORTERS = 2
"""Children that must report a source to exclude it."""
REPORT_S = 600.0
"""For this time a report counts, and who made it gets another source."""
MAX_REPORTS = 3
"""A worker with this many reports is not believed, and feeds no one, until they no longer count."""
MAX_KEPT = 4_096
"""Reports in all: identities are free."""


class LinkLimits(Struct, frozen=True, array_like=True):
    """A node's largest upload and download rates in bytes/s; None: unlimited."""

    up: ClaimedRate | None = None
    down: ClaimedRate | None = None


class Slot(Struct, frozen=True, array_like=True):
    """A node's slot in a broadcast."""

    sources: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_SOURCES)]
    """The node to fetch from, then that node's source, and so on; the learner last."""
    num_children: Annotated[int, Meta(ge=0, le=2**16)]
    """Number of nodes to feed."""
    bytes_per_s: Annotated[float, Meta(gt=0, le=MAX_BYTES_PER_S)] | None
    """Planned rate of the stream; None without a known limit."""
    feeds: Annotated[tuple[PeerId, ...], Meta(max_length=2**10)] = ()
    """Nodes to feed first."""


class RelayPlan:
    """The slots of one broadcast."""

    def __init__(
        self,
        learner: str,
        limits: LinkLimits,
        workers: Mapping[str, LinkLimits],
        fan_out: int,
        *,
        tried: Collection[str] = (),
        idle: Collection[str] = (),
        suspected: Collection[str] = (),
        apart: Collection[tuple[str, str]] = (),
    ) -> None:
        """Assign slots to all workers; `fan_out` is the number of children for nodes with unknown links.

        Claimed links are unverified. Workers that were `tried` come first and determine the rate if there are any.
        Those that may have fed no one, `suspected`, come after others with as many children; `idle` ones come last and
        feed no one. `apart`: (worker, source) pairs to avoid.
        """
        self._fan_out = fan_out
        self._idle = idle
        self._apart = apart
        self._fed: defaultdict[str, list[str]] = defaultdict(list)
        counted = [each for peer, each in workers.items() if peer in tried] or list(workers.values())
        self.bytes_per_s = stream_rate(limits, counted, fan_out)
        root = Slot((), self._num_children(LinkLimits(limits.up)), None)
        self.slots: dict[str, Slot] = {learner: root}
        self._free = deque([learner] * root.num_children)
        """Free slots, nearest to the learner first."""

        def use(peer: str) -> tuple[bool, bool, int, bool]:
            return peer not in idle, peer in tried, self._num_children(workers[peer]), peer not in suspected

        put_off = []
        for peer in sorted(workers, key=use, reverse=True):
            source = self._take_free(peer)
            if source is None and self._free:
                put_off.append(peer)  # kept apart from all that have a free slot now; others will bring more
            else:
                self._add(peer, source or learner, workers[peer])
        for peer in put_off:
            self._add(peer, self._take_free(peer) or learner, workers[peer])
        self.slots = {peer: replace(slot, feeds=tuple(self._fed[peer])) for peer, slot in self.slots.items()}

    def _add(self, peer: str, source: str, limits: LinkLimits) -> None:
        above = self.slots[source].sources
        # Keep the last source: it is the learner, or nothing for a child of the learner.
        sources = (source, *above[: MAX_SOURCES - 2], *above[MAX_SOURCES - 2 :][-1:])
        slot = Slot(sources, 0 if peer in self._idle else self._num_children(limits), self.bytes_per_s)
        self.slots[peer] = slot
        self._fed[source].append(peer)
        self._free += [peer] * slot.num_children

    def _take_free(self, peer: str) -> str | None:
        """The source at the first free slot for this peer, which is free no more; None if there is none."""
        for index, source in enumerate(self._free):
            if (peer, source) not in self._apart:
                del self._free[index]
                return source
        return None

    def _num_children(self, limits: LinkLimits) -> int:
        rate = self.bytes_per_s
        slow = rate is not None and limits.down is not None and limits.down < rate * (1 - ROUNDING)
        return 0 if slow else _num_streams(limits.up, rate, self._fan_out)


def stream_rate(learner: LinkLimits, workers: Sequence[LinkLimits], fan_out: int) -> float | None:
    """Largest rate in bytes/s at which all can receive at the same time, within the limits; None without limits."""
    downlinks = sorted(math.inf if limits.down is None else limits.down for limits in workers)
    # Up to half of the workers may be slower than the rest; they come last and feed no one.
    most = min(learner.up or math.inf, downlinks[len(downlinks) // 2] if downlinks else math.inf)
    uplinks = [limits.up for limits in (learner, *workers)]
    shares = {up / k for up in set(uplinks) if up is not None for k in range(1, MAX_CHILDREN + 1)}
    rates = sorted((rate for rate in shares | {most} if rate <= most and math.isfinite(rate)), reverse=True)
    if not rates:
        return None

    def enough(rate: float) -> bool:
        return sum(_num_streams(up, rate, fan_out) for up in uplinks) >= len(workers)

    return rates[min(bisect_right(rates, False, key=enough), len(rates) - 1)]


def _num_streams(up: float | None, rate: float | None, fan_out: int) -> int:
    return fan_out if up is None or rate is None else int(min(MAX_CHILDREN, up / rate * (1 + ROUNDING)))


class _Worker(Struct):
    """A worker that has asked for a slot."""

    limits: LinkLimits
    asked_at: float
    tried: bool = False
    """It had a slot in an earlier broadcast."""


class _Reports:
    """Sources that delivered nothing, as reported by the workers that they should have fed."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        """Source by worker: what each may still report in this broadcast."""
        self._reporters: set[str] = set()
        """Workers that have made a report in this broadcast."""
        self._made: dict[tuple[str, str], float] = {}
        """Time by (worker, source), oldest first."""

    def begin_broadcast(self, sources: Mapping[str, str]) -> None:
        """From now on each worker may report its source in `sources`, once."""
        self._given = dict(sources)
        self._reporters = set()

    def add(self, worker: str, failed: Collection[str], now: float) -> str | None:
        """The source among `failed` of which this worker's report counts."""
        source = self._given.get(worker)
        if source is None or source not in failed or worker in self.doubted(now):
            return None
        del self._given[worker]
        self._reporters.add(worker)
        self._made[worker, source] = now
        if len(self._made) > MAX_KEPT:
            del self._made[next(iter(self._made))]
        return source

    def pairs(self, now: float) -> Collection[tuple[str, str]]:
        """(worker, source) of each report that counts."""
        self._made = {pair: made_at for pair, made_at in self._made.items() if now - made_at < REPORT_S}
        return self._made.keys()

    def doubted(self, now: float) -> frozenset[str]:
        """Workers that have made too many reports to be believed."""
        num_made = Counter(worker for worker, _ in self.pairs(now))
        return frozenset(worker for worker, number in num_made.items() if number >= MAX_REPORTS)

    def agree(self, source: str, now: float) -> bool:
        """Whether enough workers have reported a source that has not itself reported its own in this broadcast."""
        num_reporters = sum(reported == source for _, reported in self.pairs(now))
        return num_reporters >= NUM_REPORTERS and source not in self._reporters


class Placement:
    """The workers that have asked for a slot, and the resulting plan."""

    def __init__(
        self,
        learner: str,
        limits: LinkLimits,
        settings: SnapshotSettings,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limits` are the learner's own rates."""
        self._learner = learner
        self._limits = limits
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._workers: dict[str, _Worker] = {}
        self._idle = Backoff(IDLE_S, MAX_IDLE_S)
        self._reports = _Reports()
        self.plan = RelayPlan(learner, limits, {}, settings.fan_out)

    @property
    def root(self) -> Slot:
        """The learner's own slot."""
        return self.plan.slots[self._learner]

    def slot_for(self, worker: str, limits: LinkLimits, failed: tuple[str, ...] = ()) -> Slot | None:
        """The slot of a worker that asks; None if there are too many.

        `failed`: sources of its slot that delivered nothing, as it reports.
        """
        known = self._workers.get(worker)
        if known is None and not self._make_room():
            return None
        self._workers[worker] = _Worker(limits, self._clock(), known is not None and known.tried)
        if self._is_news(worker, failed) or worker not in self.plan.slots:
            self._make_plan()
        return self.plan.slots[worker]

    def begin_broadcast(self) -> dict[str, Slot]:
        """Make a new plan. Returns the slots of all workers, which count as tried from now on."""
        self._make_plan()
        for worker in self._workers.values():
            worker.tried = True
        slots = {worker: slot for worker, slot in self.plan.slots.items() if worker != self._learner}
        # The learner is no worker, and knows itself what it gave.
        sources = {worker: slot.sources[0] for worker, slot in slots.items() if slot.sources[0] in slots}
        self._reports.begin_broadcast(sources)
        return slots

    def forget(self, worker: str) -> None:
        """Give a worker no slot in the next plan, unless it asks again."""
        self._workers.pop(worker, None)

    def _make_room(self) -> bool:
        """Whether there is room for one more worker; an untried one may be displaced."""
        if len(self._workers) < MAX_WORKERS:
            return True
        untried = [worker for worker, each in self._workers.items() if not each.tried]
        if untried:
            del self._workers[min(untried, key=lambda worker: self._workers[worker].asked_at)]
        return bool(untried)

    def _is_news(self, worker: str, failed: tuple[str, ...]) -> bool:
        """Take a worker's report of its source; whether it counts.

        Only the source that it got for this broadcast counts, and once. A source whose own report counts is excused: it
        had nothing to give.
        """
        now = self._clock()
        source = self._reports.add(worker, failed, now)
        if source is None:
            return False
        self._counters.add("reported_sources")
        logger.debug("%s was the planned source of %s, but sent too little", source, worker)
        if self._reports.agree(source, now) and not self._is_idle(source):
            self._idle.failed(source, now)
            self._counters.add("idle_sources")
        return True

    def _is_idle(self, worker: str) -> bool:
        return self._idle.wait_s(worker, self._clock()) > 0

    def _make_plan(self) -> None:
        """Assign slots to all workers that have asked recently; the others lose their slots."""
        since = self._clock() - FORGET_AFTER_POLLS * self._settings.poll_s
        self._workers = {worker: each for worker, each in self._workers.items() if each.asked_at >= since}
        now = self._clock()
        apart = self._reports.pairs(now)
        idle = self._reports.doubted(now).union(filter(self._is_idle, self._workers))
        self.plan = RelayPlan(
            self._learner,
            self._limits,
            {worker: each.limits for worker, each in self._workers.items()},
            self._settings.fan_out,
            tried=frozenset(worker for worker, each in self._workers.items() if each.tried) - idle,
            idle=idle,
            suspected={source for _, source in apart},
            apart=apart,
        )
