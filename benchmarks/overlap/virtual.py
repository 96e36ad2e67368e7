"""A learner and its workers in virtual time: real loop, buffer and intake; slow operations only advance the clock.

Workers sample groups one by one, send them over a delayed link, install snapshots between two tokens, pause when they
lag too far, die and return. The clock advances when the learner trains or waits.
"""

from __future__ import annotations

import heapq
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from swarm.extras.learner.capacity import Demand
from swarm.extras.learner.learner import Learner, LearnerObserver, LearnerParts, LearnerTerms, StepReport
from swarm.files import RandomAccessFile
from swarm.following import LearnerSettings
from swarm.reasons import Outcome, Reason
from swarm.types import (
    Actions,
    Commitment,
    Completion,
    Grade,
    GradedGroup,
    NetworkStatus,
    OfferedGroup,
    PolicyId,
    ProceduralRef,
    ReceivedGroup,
    Rejection,
    RolloutGroup,
    Sampling,
    TaskRef,
    UpdateReport,
    VersionSpan,
)

GROUP_SIZE = 8
TOKENS = 4


@dataclass(frozen=True)
class Plan:
    """The settings of a run."""

    demand: Demand
    max_staleness: int
    rates: tuple[float, ...]
    """Rollouts per second of each worker."""
    idle_while_receiving: bool = False
    """The model's worst case: nothing is sampled between publication and installation."""
    delay_s: float = 0.0
    """Mean delay of a sent group, exponentially distributed."""
    death: float = 0.0
    """Probability that a worker dies instead of finishing a group."""
    away_s: float = 0.0
    """Mean time until it returns, exponentially distributed."""
    jitter: float = 0.1
    """Relative spread of a group's sampling time."""
    seed: int = 0


@dataclass
class VirtualWorker:
    """One worker's state."""

    rate: float
    version: int = 0
    installing: int = 0
    """Snapshots in transit to it."""
    away: bool = False
    waiting: bool = False
    """It is not sampling."""
    spans: list[int] = field(default_factory=list)
    """Versions of the current group's tokens."""


class Virtual:
    """One run: implements every interface around the learner."""

    max_chars = 10**9

    def __init__(self, plan: Plan) -> None:
        """At time 0, with version 0 installed everywhere."""
        self.now = 0.0
        self.version = 0
        self.worst_lag = 0
        self.num_sent = 0
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._inbox: list[ReceivedGroup] = []
        self._graded: list[tuple[str, Grade | Rejection]] = []
        self._announced = 0
        self._workers = [VirtualWorker(rate) for rate in plan.rates]
        settings = LearnerSettings(
            max_staleness=plan.max_staleness,
            publish_every=plan.demand.publish_every,
            rollouts_per_step=plan.demand.rollouts,
            micro_batch_rollouts=GROUP_SIZE,
            buffer_groups=100_000,
        )
        # As much of updater and verifier as a step of the learner calls.
        folder = Path(tempfile.gettempdir())
        parts = LearnerParts(
            updater=self,  # type: ignore[arg-type]
            verifier=self,  # type: ignore[arg-type]
            exchange=self,
            publisher=self,
            auditor=self,
            folder=folder,
        )
        terms = LearnerTerms(learner=settings, max_pending_per_peer=10**9)
        self.learner = Learner(terms, parts, LearnerObserver(), clock=lambda: self.now)
        for worker in self._workers:
            self._at(self._random.uniform(0, GROUP_SIZE / worker.rate), partial(self._begin, worker))

    def run(self, num_steps: int) -> list[StepReport]:
        """Run this many learner steps."""
        return [self.learner.run_step() for _ in range(num_steps)]

    # The workers.

    def _at(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), what))

    def _begin(self, worker: VirtualWorker) -> None:
        worker.spans = []
        self._token(worker)

    def _token(self, worker: VirtualWorker) -> None:
        """Sample the next token of the current group, unless paused or dead."""
        if len(worker.spans) == TOKENS:
            self._finish(worker)
            return
        lagging = self._announced - worker.version > self._plan.max_staleness
        worker.waiting = worker.away or lagging or (self._plan.idle_while_receiving and worker.installing > 0)
        if worker.waiting:
            return
        worker.spans.append(worker.version)
        seconds = GROUP_SIZE / worker.rate / TOKENS
        self._at(
            seconds * self._random.uniform(1 - self._plan.jitter, 1 + self._plan.jitter), lambda: self._token(worker)
        )

    def _finish(self, worker: VirtualWorker) -> None:
        if self._random.random() < self._plan.death:
            worker.away = worker.waiting = True
            self._at(self._random.expovariate(1 / self._plan.away_s), lambda: self._back(worker))
            return
        group = self._group(worker.spans)
        delay_s = self._random.expovariate(1 / self._plan.delay_s) if self._plan.delay_s else 0.0
        self._at(delay_s, lambda: self._inbox.append(ReceivedGroup(str(group.sequence), group)))
        self._begin(worker)

    def _back(self, worker: VirtualWorker) -> None:
        worker.away = False
        if worker.version < self._announced:
            self._send_snapshot(worker, self._announced)
        self._begin(worker)

    def _send_snapshot(self, worker: VirtualWorker, version: int) -> None:
        # The slowest worker has it after exactly the model's broadcast time.
        share = 1.0 if self._plan.idle_while_receiving else self._random.uniform(0.5, 1.0)
        worker.installing += 1
        self._at(share * self._plan.demand.broadcast_s, lambda: self._install(worker, version))

    def _install(self, worker: VirtualWorker, version: int) -> None:
        worker.installing -= 1
        worker.version = max(worker.version, version)
        if worker.waiting:
            self._token(worker)

    def _group(self, versions: Sequence[int]) -> RolloutGroup:
        spans = tuple(VersionSpan(version, 1) for version in versions)
        self.num_sent += 1
        completions = tuple(
            Completion(f"{self.num_sent} {k}", "stop", tuple(range(TOKENS)), (-1.0,) * TOKENS, spans)
            for k in range(GROUP_SIZE)
        )
        return RolloutGroup(
            run_id="",
            peer_id="worker",
            sequence=self.num_sent,
            created_at=self.now,
            policy=PolicyId("virtual", "", versions[0]),
            sampling=Sampling(),
            question=ProceduralRef("virtual", "none", "", 0, self.num_sent, ""),
            completions=completions,
            rewards=(1.0,) + (0.0,) * (GROUP_SIZE - 1),
        )

    def _pass(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        self.now = until

    # The learner's interfaces: exchange, verifier, updater, publisher, auditor.

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        """Not asked of a learner."""
        raise AssertionError

    def share_all(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """Not asked of a learner."""
        raise AssertionError

    def took(self, num_groups: int, num_wanted: int) -> None:
        """Workers send all they make."""

    def offers(self) -> list[OfferedGroup]:
        """Workers send their groups."""
        return []

    def commitments(self) -> list[Commitment]:
        """Nobody copies."""
        return []

    def banned(self) -> frozenset[str]:
        """Nobody."""
        return frozenset()

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        """Nothing is on offer."""

    def receive(self) -> tuple[list[ReceivedGroup], dict[Reason, int]]:
        """Groups that have arrived."""
        arrived, self._inbox = self._inbox, []
        return arrived, {}

    def wait(self, timeout_s: float) -> bool:
        """Advance the clock to the next event."""
        self._pass(self._events[0][0])
        return bool(self._inbox)

    def account(self, peer_id: str) -> str:
        """Every worker has its own account."""
        return peer_id

    def report(self, peer_id: str, outcome: Outcome, verify_s: float = 0.0) -> None:
        """Nobody misbehaves here."""

    def established(self) -> frozenset[str]:
        """The workers have accounts of their own in any case."""
        return frozenset()

    def status(self) -> NetworkStatus:
        """In a run."""
        return NetworkStatus("virtual", (), None)

    def submit(self, key: str, ref: TaskRef, texts: Sequence[Actions], sender: str = "") -> None:
        """Graded at once."""
        self._graded.append((key, Grade("", (1.0,) + (0.0,) * (GROUP_SIZE - 1))))

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        """The submitted groups."""
        graded, self._graded = self._graded, []
        return graded

    def refusal(self, group: GradedGroup) -> str | None:
        """Everything fits."""
        return None

    def accumulate(self, groups: Sequence[GradedGroup]) -> None:
        """Takes the group's share of the step's time."""
        self.worst_lag = max(self.worst_lag, *(self.version - group.group.oldest_version for group in groups))
        demand = self._plan.demand
        self._pass(self.now + demand.train_s * sum(len(group.rewards) for group in groups) / demand.rollouts)

    def apply(self) -> UpdateReport:
        """Advance the version."""
        self.version += 1
        return UpdateReport()

    def abandon(self) -> None:
        """Nothing to discard."""

    def snapshot(self, path: Path) -> None:
        """Nothing to write: `publish` does not read it."""

    def keep(self, version: int, snapshot: RandomAccessFile) -> None:
        """Nothing is checked."""

    def verdict(self, group: GradedGroup) -> Reason | None:
        """All claims are true."""
        return None

    def publish(self, version: int, snapshot: RandomAccessFile) -> None:
        """Send it to all live workers."""
        snapshot.path.unlink()
        self._announced = version
        for worker in self._workers:
            if not worker.away:
                self._send_snapshot(worker, version)

    def check(self) -> None:
        """Publishing never fails."""


def bubble(reports: Sequence[StepReport], warm_up: int) -> float:
    """Fraction of its time that the learner waited, without the first steps."""
    late = reports[warm_up:]
    waited = sum(report.timings["wait"] for report in late)
    trained = sum(report.timings["update"] for report in late)
    return waited / (waited + trained)
