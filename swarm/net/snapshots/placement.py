"""The learner's side of a plan: which workers have a place in it, and which of them failed to feed others.

Pure but for the clock; the caller holds a lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

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
"""A worker that failed to feed its child is excluded as a source for this time, twice as long each time."""


class _Worker(Struct):
    """A worker that has asked for a place."""

    limits: LinkLimits
    asked_at: float
    tried: bool = False
    """It had a place in an earlier broadcast."""
    failed: tuple[str, ...] = ()
    """Sources that delivered nothing, according to its last request."""


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
        self._workers[worker] = _Worker(limits, self._clock(), known is not None and known.tried, failed)
        if worker not in self.plan.places or self._blame(worker):
            self._make_plan()
        return self.plan.places[worker]

    def begin_broadcast(self) -> dict[str, Place]:
        """Make a new plan. Returns the places of all workers, which count as tried from now on."""
        self._make_plan()
        for worker in self._workers.values():
            worker.tried = True
        return {worker: place for worker, place in self.plan.places.items() if worker != self._learner}

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

    def _blame(self, worker: str) -> bool:
        """Whether this worker's source is excluded from now on because it delivered nothing.

        Only a report from its planned children counts, and a source that reports its own source is excused.
        """
        source = self.plan.places[worker].sources[0]
        found = self._workers.get(source)
        if source not in self._workers[worker].failed or found is None or found.failed or self._is_idle(source):
            return False
        self._idle.failed(source, self._clock())
        self._counters.add("idle_sources")
        logger.debug("%s was the planned source of %s, but sent too little", source, worker)
        return True

    def _is_idle(self, worker: str) -> bool:
        return self._idle.wait_s(worker, self._clock()) > 0

    def _make_plan(self) -> None:
        """Place all workers that have asked recently; the others lose their places."""
        since = self._clock() - FORGET_AFTER_POLLS * self._settings.poll_s
        self._workers = {worker: each for worker, each in self._workers.items() if each.asked_at >= since}
        idle = frozenset(filter(self._is_idle, self._workers))
        self.plan = RelayPlan(
            self._learner,
            self._limits,
            {worker: each.limits for worker, each in self._workers.items()},
            self._settings.fan_out,
            tried=frozenset(worker for worker, each in self._workers.items() if each.tried) - idle,
            idle=idle,
        )
