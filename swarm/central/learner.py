"""A learner: trains one policy on what its workers sample with it, and publishes what it becomes.

    swarm ──▶ intake: regraded ──▶ audit: signal, tokens, version, spot check ──▶ buffer: at most S versions old
                                                                                     │ micro-batches, as they come
                                                                                     ▼
    workers ◀── snapshot, every kappa steps ◀── apply, once R rollouts are in ◀── accumulate

There is no barrier: the gradient of a step grows while the rollouts of the same step are still being sampled, and the
step is made when R rollouts are in, whoever sent them. What waits where:
  intake    received groups being regraded, bounded by the verification settings
  buffer    admissible groups, bounded by `learner.buffer_groups`; at a new version the too old ones are discarded
Source: arXiv:2602.02192, algorithm 1; streaming: arXiv:2604.11554, section 3.3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from msgspec import Struct
from pydantic import Field

from swarm.central.buffer import ReplayBuffer
from swarm.central.capacity import publish_every
from swarm.errors import Interrupted
from swarm.figures import values
from swarm.groups.intake import Intake, cannot_fit
from swarm.groups.rollout_figures import rollout_figures
from swarm.groups.versions import newest_version, oldest_version
from swarm.protocols import Auditor, GroupExchange, SnapshotPublisher, StreamingUpdater, Verifier
from swarm.reasons import Reason
from swarm.settings import Settings
from swarm.stopwatch import Stopwatch
from swarm.telemetry.ledger import Ledger
from swarm.types import GradedGroup, RolloutGroup, UpdateReport

POLL_S = 0.02


class LearnerSettings(Settings):
    """How `swarm learn` trains on its workers' rollouts."""

    max_staleness: int = Field(3, ge=0)
    """S: a token is trained on at most S updates after the one that made its policy; 0: strictly on-policy."""
    publish_every: int | None = Field(None, ge=1)
    """kappa: updates between snapshots. Default: max(1, S - 1)."""
    rollouts_per_step: int = Field(64, ge=1)
    """R: completions an update, in whole groups with signal."""
    micro_batch_rollouts: int = Field(8, ge=1)
    """So many have to be there for their part of the gradient to be computed, the last ones of an update aside."""
    buffer_groups: int = Field(256, ge=1)
    """Groups that wait for an update; beyond it the oldest version goes first."""
    precision: Literal["native", "bfloat16", "int8"] = "native"
    """What snapshots are sent in. Rounded ones are smaller; the rounded policy is what samples then, and its
    log-probabilities are what importance weights are against."""
    spot_check: float = Field(0.05, ge=0, le=1)
    """Part of the groups whose log-probabilities are computed again under the snapshots they name. A worker's first
    group always is, and after a lie all of its groups until one is true; 0: none."""
    spot_check_nats: float = Field(0.1, gt=0)
    """Mean difference a token from which on a claim is a lie; other kernels and stale caches explain less."""
    headroom: float = Field(1.1, ge=1)
    """alpha: workers are activated until they give alpha times the least rate that keeps the learner busy."""
    release_above: float = Field(1.3, ge=1)
    """Workers are released when they give more than this multiple of that aim."""
    act_after_s: float = Field(30.0, ge=0)
    """Only what has lasted this long is acted on."""
    reached_fraction: float = Field(0.9, gt=0, le=1)
    """Part of the active workers that must have installed a snapshot for its broadcast to be over."""

    @property
    def period(self) -> int:
        """kappa."""
        return self.publish_every or publish_every(self.max_staleness)


class StepReport(Struct, frozen=True):
    """What one learner step did."""

    round: int
    """1-based."""
    version: int
    """Of the policy after it."""
    num_groups: int
    num_rollouts: int
    update: UpdateReport
    timings: dict[str, float]
    """Seconds: `wait` for admissible rollouts, `update`, `publish`, `receive`."""
    figures: dict[str, float] = {}
    """Of the groups trained on, by conventional name."""


class Learner:
    """The side that trains."""

    def __init__(
        self,
        *,
        settings: LearnerSettings,
        max_pending_per_peer: int,
        updater: StreamingUpdater,
        verifier: Verifier,
        exchange: GroupExchange,
        publisher: SnapshotPublisher,
        auditor: Auditor,
        ledger: Ledger,
        delivered: Callable[[str, int], None] = lambda peer_id, rollouts: None,
        cancelled: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A learner that has published nothing yet.

        `delivered` is told whose rollouts, and how many, became admissible; `cancelled` is asked while waiting.
        """
        self.round = 0
        """Steps made."""
        self.buffer = ReplayBuffer(settings.max_staleness, settings.buffer_groups)
        self.ledger = ledger
        self._settings = settings
        self._updater = updater
        self._exchange = exchange
        self._publisher = publisher
        self._auditor = auditor
        self._intake = Intake(exchange, verifier, ledger, max_pending_per_peer, self._hopeless, self._unfit)
        self._delivered = delivered
        self._cancelled = cancelled
        self._clock = clock

    @property
    def num_pending(self) -> int:
        """Received groups that are being regraded."""
        return len(self._intake)

    def publish(self) -> None:
        """Give the policy as it is now to the workers."""
        snapshot = self._updater.snapshot()
        self._auditor.keep(self._updater.version, snapshot)
        self._publisher.publish(self._updater.version, snapshot)

    def run_step(self) -> StepReport:
        """One update on R rollouts, waiting for those that are missing. Raises `Interrupted`, the buffer whole."""
        spent = Stopwatch(("wait", "receive", "update", "publish"), self._clock)
        num_rollouts = 0
        while (missing := self._settings.rollouts_per_step - num_rollouts) > 0:
            with spent("receive"):
                self.receive()
            if self.buffer.num_rollouts() >= min(missing, self._settings.micro_batch_rollouts):
                with spent("update"):
                    groups = self.buffer.take(self._updater.version, missing)
                    self._updater.accumulate(groups)
                    num_rollouts += sum(len(group.rewards) for group in groups)
            else:
                with spent("wait"):
                    self._wait()
        with spent("update"):
            update = self._updater.apply()
        groups = self._settle(update.skipped)
        with spent("publish"):
            if not update.skipped and self._updater.version % self._settings.period == 0:
                self.publish()
        self.round += 1
        return StepReport(
            round=self.round,
            version=self._updater.version,
            num_groups=len(groups),
            num_rollouts=num_rollouts,
            update=update,
            timings=spent.seconds,
            figures=values(rollout_figures(groups)),
        )

    def receive(self) -> None:
        """Take what has arrived and been regraded; what can teach enters the buffer, the rest is counted."""
        for content_id, graded in self._intake.receive(self.buffer):
            self._delivered(graded.group.peer_id, len(graded.rewards))
            for reason, count in self.buffer.add(content_id, graded, self._updater.version, self._clock()).items():
                self.ledger.dropped(reason, count)

    def _hopeless(self, group: RolloutGroup) -> Reason | None:
        """What a group's versions and lengths alone say against it."""
        if cannot_fit(group, self._updater.max_chars):
            return Reason.TOO_LONG
        if newest_version(group) > self._updater.version:
            return Reason.WRONG_VERSION
        too_old = self._updater.version - oldest_version(group) > self._settings.max_staleness
        return Reason.STALE_VERSION if too_old else None

    def _unfit(self, graded: GradedGroup) -> Reason | None:
        return self._updater.refusal(graded) or self._auditor.verdict(graded)

    def _wait(self) -> None:
        if self._cancelled():
            self._updater.abandon()
            self.buffer.give_back()
            raise Interrupted("stopped while waiting for rollouts")
        self._exchange.wait(POLL_S)

    def _settle(self, skipped: bool) -> list[GradedGroup]:
        """Book the groups of the update that was just made, which are returned, and let go of what is now too old."""
        groups = self.buffer.settle()
        self._intake.settle(groups, len(groups), skipped)
        for reason, count in self.buffer.advance(self._updater.version).items():
            self.ledger.dropped(reason, count)
        return groups
