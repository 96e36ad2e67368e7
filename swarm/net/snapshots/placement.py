"""The learner's side of a plan: which workers have a place in it, and which of them failed to feed others.

That a source delivered nothing is known only from the workers that it should have fed, and they may lie. So one report
moves the worker that made it, and takes nothing from its source but the places that others can fill as well; a source
loses its children when several of them agree; and who reports often is not believed and feeds nobody itself.

Pure but for the clock; the caller holds a lock.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from swarm.net.addresses.dial import Backoff
from swarm.net.counters import Counters
from swarm.net.snapshots.config import SnapshotSettings
from swarm.net.snapshots.plan import LinkLimits, Place, RelayPlan

logger = logging.getLogger(__name__)

FORGET_AFTER_POLLS = 3
"""A worker that has not asked for this many times `poll_s` gets no place in the next plan."""
MAX_WORKERS = 256
"""Workers with a place. A new one displaces the one that asked longest ago among those without a broadcast yet."""
IDLE_S, MAX_IDLE_S = 60.0, 3_600.0
"""A worker that failed to feed its children is excluded as a source for this time, twice as long each time."""
NUM_REPORTERS = 2
"""Children that must report a source to exclude it."""
REPORT_S = 600.0
"""For this time a report counts, and who made it gets another source."""
MAX_REPORTS = 3
"""A worker with this many reports is not believed, and feeds nobody, until they no longer count."""
MAX_KEPT = 4_096
"""Reports in all: identities are free."""


class _Worker(Struct):
    """A worker that has asked for a place."""

    limits: LinkLimits
    asked_at: float
    tried: bool = False
    """It had a place in an earlier broadcast."""


class _Reports:
    """Which sources delivered nothing, as the workers say to which a broadcast's plan gave them."""

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
    """The workers that have asked for a place, and the resulting plan."""

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
    def root(self) -> Place:
        """The learner's own place."""
        return self.plan.places[self._learner]

    def place_for(self, worker: str, limits: LinkLimits, failed: tuple[str, ...] = ()) -> Place | None:
        """The place of a worker that asks; None if there are too many.

        `failed`: sources of its place that delivered nothing, as it reports.
        """
        known = self._workers.get(worker)
        if known is None and not self._make_room():
            return None
        self._workers[worker] = _Worker(limits, self._clock(), known is not None and known.tried)
        if self._is_news(worker, failed) or worker not in self.plan.places:
            self._make_plan()
        return self.plan.places[worker]

    def begin_broadcast(self) -> dict[str, Place]:
        """Make a new plan. Returns the places of all workers, which count as tried from now on."""
        self._make_plan()
        for worker in self._workers.values():
            worker.tried = True
        places = {worker: place for worker, place in self.plan.places.items() if worker != self._learner}
        # The learner is no worker, and knows itself what it gave.
        sources = {worker: place.sources[0] for worker, place in places.items() if place.sources[0] in places}
        self._reports.begin_broadcast(sources)
        return places

    def forget(self, worker: str) -> None:
        """Give a worker no place in the next plan, unless it asks again."""
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
        """Place all workers that have asked recently; the others lose their places."""
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
