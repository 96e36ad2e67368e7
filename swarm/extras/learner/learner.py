"""A learner: trains one policy on the rollouts of its workers, and publishes its snapshots.

    swarm ──▶ intake: regraded ──▶ audit: signal, tokens, version, sampled? ──▶ fence ──▶ buffer: at most S versions old
                                                                                           │ fair parts, as they come
                                                                                           ▼
    workers ◀── snapshot, every kappa steps ◀── apply, once R rollouts are in ◀── accumulate

There is no barrier: the learner accumulates a step's gradient while workers still sample its rollouts, and applies it
when R rollouts have arrived, from any worker. The queues:
  intake    received groups being regraded, bounded by the verification settings
  buffer    admissible groups, bounded by `learner.buffer_groups`; a new version discards the stale ones
Source: arXiv:2602.02192, algorithm 1; streaming: arXiv:2604.11554, section 3.3.

The fence compares workers with one another. All sample the same policy, so their log-probabilities compare. A worker is
no part of its own reference before it is established, and afterwards only in its favour: nobody excludes an honest
worker with very likely texts.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median_low

from msgspec import Struct
from msgspec.structs import replace

from swarm.errors import Interrupted, SnapshotError
from swarm.extras.learner.buffer import ReplayBuffer
from swarm.extras.learner.protocols import Auditor, SnapshotPublisher, StreamingUpdater
from swarm.figures import values
from swarm.files import RandomAccessFile
from swarm.following import LearnerSettings
from swarm.groups.credit import Credit
from swarm.groups.rollout_figures import rollout_figures
from swarm.lru import LruDict
from swarm.protocols import NEWCOMERS, GroupExchange, Updater, Verifier
from swarm.reasons import FRAUDS, Fate, Reason
from swarm.received.authors import author_of
from swarm.received.copies import Copies
from swarm.received.corroboration import SALT_BITS, Corroboration, CorroborationSettings, CorroborationState
from swarm.received.intake import Intake, IntakeLimits, Selection, cannot_fit
from swarm.received.plausibility import Plausibility, PlausibilitySettings, least_probable
from swarm.received.pushes import ReadGroup, Reading
from swarm.received.screening import CandidateScorer, own_reading, read_group
from swarm.sapo.watch import Alarm, WatchSettings
from swarm.stopwatch import Stopwatch
from swarm.telemetry.ledger import Ledger
from swarm.types import MAX_COMPLETIONS, GradedGroup, ReceivedGroup, RolloutGroup, UpdateReport

logger = logging.getLogger(__name__)


POLL_S = 0.02
RETRY_S = 5.0
"""Between two tries to write a snapshot to a full disk."""


class StepReport(Struct, frozen=True):
    """The result of one learner step."""

    round: int
    """1-based."""
    version: int
    """The policy's version after the step."""
    num_groups: int
    num_rollouts: int
    update: UpdateReport
    timings: dict[str, float]
    """Seconds: `wait` for admissible rollouts, `update`, `publish`, `receive`."""
    figures: dict[str, float] = {}
    """Figures of the groups trained on, by conventional name."""
    senders: tuple[str, ...] = ()
    """Senders of the groups trained on."""


class LearnerTerms(Struct, frozen=True, kw_only=True):
    """How a learner deals with its workers' groups."""

    learner: LearnerSettings
    plausibility: PlausibilitySettings = PlausibilitySettings()
    corroboration: CorroborationSettings = CorroborationSettings()
    credit: Credit = "episode"
    """Credit assignment of the updates."""
    max_group_size: int = MAX_COMPLETIONS
    """Most completions of a group."""
    max_pending_per_peer: int
    """Most groups of one worker that wait to be regraded."""
    trusted: Collection[str] = ()
    """Workers whose tool results are accepted without replay."""


class LearnerParts(Struct, frozen=True, kw_only=True):
    """The parts of a learner."""

    updater: StreamingUpdater
    verifier: Verifier
    exchange: GroupExchange
    publisher: SnapshotPublisher
    auditor: Auditor
    folder: Path
    """Folder in which snapshots are packed, on the disk from which the publisher serves them."""


class LearnerObserver:
    """Watches a learner, and can stop it. This one does neither."""

    def keep(self, fate: Fate, group: GradedGroup | RolloutGroup) -> None:
        """See `KeepSample`."""

    def delivered(self, peer_id: str, rollouts: int) -> None:
        """A worker delivered a group with this number of admissible rollouts."""

    def cancelled(self) -> bool:
        """Whether to stop; polled while the learner waits."""
        return False


class Learner(Selection):
    """Trains one policy on its workers' rollouts."""

    def __init__(
        self,
        terms: LearnerTerms,
        parts: LearnerParts,
        observer: LearnerObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A learner before its first snapshot."""
        settings = terms.learner
        self.round = 0
        """Steps made."""
        self.buffer = ReplayBuffer(settings.max_staleness, settings.buffer_groups)
        self.ledger = Ledger()
        self.max_completions = terms.max_group_size
        self._fence = WorkerFence(terms.plausibility)
        self.corroboration = WorkerCorroboration(terms.corroboration)
        self._credit: Credit = terms.credit
        self._settings = settings
        self._updater = parts.updater
        self._exchange = parts.exchange
        self._publisher = parts.publisher
        self._auditor = parts.auditor
        self._folder = parts.folder
        self._publish_at: float | None = None
        """When to try again to publish what could not be written; None when nothing is due."""
        limits = IntakeLimits(terms.max_pending_per_peer, trusted=terms.trusted)
        self._intake = Intake(parts.exchange, parts.verifier, self.ledger, self, limits, Copies(), observer.keep)
        self._restarted = False
        """Whether the open update has been abandoned for a fraud."""
        self._observer = observer
        self._clock = clock

    @property
    def num_pending(self) -> int:
        """Received groups that are being regraded."""
        return len(self._intake)

    def publish(self) -> None:
        """Publish the current policy to the workers; on a full disk try again later, while the learner waits.

        Raises `SnapshotError`.
        """
        version = self._updater.version
        path = self._folder / f"packed-{version}-{os.getpid()}"
        try:
            self._updater.snapshot(path)
            snapshot = RandomAccessFile(path)
        except OSError as error:
            if self._publish_at is None:
                logger.error("snapshots cannot be written: %s; trying again, free disk space", error)
            self._publish_at = self._clock() + RETRY_S
            return
        self._publish_at = None
        self._auditor.keep(version, snapshot)
        self._publisher.publish(version, snapshot)

    def run_step(self) -> StepReport:
        """One update on R rollouts; waits for missing ones.

        Raises `Interrupted` and `SnapshotError` with the buffer restored.
        """
        self._publisher.check()
        self._restarted = False
        spent = Stopwatch(("wait", "receive", "update", "publish"), self._clock)
        while (missing := self._settings.rollouts_per_step - self.buffer.num_taken) > 0:
            with spent("receive"):
                self.receive()
            if taken := self._take(missing):
                with spent("update"):
                    self._updater.accumulate(taken)
            else:
                with spent("wait"):
                    self._wait()
        with spent("update"):
            update = self._updater.apply()
        num_rollouts = self.buffer.num_taken
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
            senders=tuple(graded.group.peer_id for graded in groups),
        )

    def receive(self) -> None:
        """Receive regraded groups; admissible ones enter the buffer, the rest are counted."""
        now, authors = self._clock(), author_of(self._exchange)
        for received in self._intake.receive(self.buffer):
            graded = self._screened(received)
            if graded is None:
                self.ledger.dropped(Reason.IMPROBABLE)
                self._observer.keep(Reason.IMPROBABLE, received.graded)
                continue
            received.content = graded
            self._observer.delivered(received.peer_id, len(graded.rewards))
            for reason, count in self.buffer.admit(received, self._updater.version, now, authors).items():
                self.ledger.dropped(reason, count)

    def _screened(self, received: ReceivedGroup) -> GradedGroup | None:
        """The part of an admitted group to learn from, None for none: everything that compares workers is here."""
        bound = self._fence.bound(received.peer_id, self._exchange.established())
        self._fence.learn(received.graded)
        if bound == -math.inf:
            return received.graded
        scorer = CandidateScorer(Claimed(self._updater), Bounded(bound), self._credit)
        (kept,) = scorer.screen([received])
        if kept is None:
            return None
        group = read_group(kept, own_reading(kept), self._updater.advantages, self._credit)
        return self.corroboration.credited(kept, group, author_of(self._exchange)(received.peer_id))

    def _take(self, missing: int) -> list[GradedGroup]:
        """Groups for the open update: a micro-batch or more, or none yet."""
        enough = min(missing, self._settings.micro_batch_rollouts)
        if self.buffer.num_rollouts() < enough and not self.buffer.is_full:  # a full buffer never holds more
            return []
        version, now, authors = self._updater.version, self._clock(), author_of(self._exchange)
        ready = self.buffer.ready(version, missing, now, authors)
        if self.buffer.num_rollouts(ready) < enough and not self.buffer.is_full:
            return []
        return self.buffer.take(version, missing, now, authors)

    def skip_reason(self, group: RolloutGroup) -> Reason | None:
        """Why a group cannot be used, judged by its worker, versions and lengths."""
        if self._settings.workers is not None and group.peer_id not in self._settings.workers:
            return Reason.NOT_INVITED
        if cannot_fit(group, self._updater.max_chars):
            return Reason.TOO_LONG
        if group.newest_version > self._updater.version:
            return Reason.WRONG_VERSION
        too_old = self._updater.version - group.oldest_version > self._settings.max_staleness
        return Reason.STALE_VERSION if too_old else None

    def reject_reason(self, graded: GradedGroup) -> Reason | None:
        """Why this policy cannot have sampled a group; its worker is then expelled."""
        reason = self._updater.refusal(graded) or self._auditor.verdict(graded)
        if reason in FRAUDS:
            self._expel(graded.group.peer_id, reason)
        return reason

    def _expel(self, peer_id: str, reason: Reason) -> None:
        """Nothing more is learned from a fraud: its groups leave the buffer, and the open update if they are in it.

        An update is restarted only once: names are free, and each could have one fraud found in the middle of it.
        """
        if self.buffer.has_taken(peer_id) and not self._restarted:
            self._restarted = True
            self._abandon()
        self.ledger.dropped(reason, self.buffer.refuse(peer_id))

    def _abandon(self) -> None:
        """Discard the open update, and hold its groups again."""
        self._updater.abandon()
        self.buffer.give_back()

    def distrust(self, senders: Collection[str]) -> None:
        """Charge workers whose groups harmed this learner, and discard what is held."""
        for peer_id in senders:
            self._exchange.report(peer_id, Reason.HARMFUL)
        self.ledger.dropped(Reason.HARMFUL, self.buffer.refuse())

    def _wait(self) -> None:
        try:
            self._publisher.check()
            if self._observer.cancelled():
                raise Interrupted("stopped while waiting for rollouts")
            if self._publish_at is not None and self._clock() >= self._publish_at:
                self.publish()
        except (Interrupted, SnapshotError):
            self._abandon()
            raise
        self._exchange.wait(POLL_S)

    def _settle(self, skipped: bool) -> list[GradedGroup]:
        """Record the groups of the update just made, which are returned, and discard stale ones."""
        groups = self.buffer.settle()
        self._intake.settle(groups, len(groups), skipped)
        for reason, count in self.buffer.advance(self._updater.version).items():
            self.ledger.dropped(reason, count)
        return groups


RENEW_AFTER = 8
"""Groups of a worker after which its fence is computed again."""
MAX_AUTHORS = 64
"""Workers whose completions are remembered."""


class _Worker(Struct):
    """Completions of one worker."""

    plausibility: Plausibility
    num_learned: int = 0
    fence: float = math.inf
    """The fence of one of its last groups."""


class WorkerFence:
    """The plausible log-probabilities of rewarded completions, by worker; all by the workers' checked claims."""

    def __init__(self, settings: PlausibilitySettings) -> None:
        """Everything is plausible until enough is known of other workers."""
        self._settings = settings
        self._workers = LruDict[str, _Worker](MAX_AUTHORS)

    def learn(self, graded: GradedGroup) -> None:
        """Add a group that was admitted."""
        worker = self._workers.setdefault(graded.group.peer_id, _Worker(Plausibility(self._settings)))
        worker.plausibility.learn([completion.logprobs for completion in graded.group.completions], graded.rewards)
        worker.num_learned += 1
        if worker.num_learned % RENEW_AFTER <= 1:
            worker.fence = worker.plausibility.fence

    def bound(self, author: str, established: Collection[str]) -> float:
        """Nats per token below which a rewarded completion of `author` is left out: the median of the established
        others' fences."""
        fences = {name: worker.fence for name, worker in self._workers.items() if name in established}
        own = fences.pop(author, math.inf)
        return min(median_low(fences.values()) if fences else -math.inf, own)


class Bounded:
    """The part of `Plausibility` that screens one worker's group."""

    def __init__(self, bound: float) -> None:
        """See `WorkerFence.bound`."""
        self._bound = bound

    def plausible(self, raised: Sequence[Sequence[float]]) -> list[bool]:
        """See `Plausibility`."""
        return [not logprobs or least_probable(logprobs) >= self._bound for logprobs in raised]


class Claimed:
    """An updater's advantages, with the log-probabilities that workers claim: nothing is recomputed."""

    def __init__(self, updater: Updater) -> None:
        """`updater` is that of the trained policy."""
        self.advantages = updater.advantages

    def read(self, groups: Sequence[GradedGroup], wanted: Sequence[Sequence[bool]] | None = None) -> list[Reading]:
        """Claimed turns by group, completion and turn, whatever is `wanted`."""
        return [own_reading(graded) for graded in groups]


class WorkerCorroboration:
    """Compares what a worker's groups push with what the established others' do; see `Corroboration`."""

    def __init__(self, settings: CorroborationSettings) -> None:
        """Every push counts until others are known. Fair parts already bound new workers."""
        self._settings = settings.model_copy(update={"full_after": 1})
        self._of = LruDict[str, Corroboration](MAX_AUTHORS)
        """Corroboration of each worker that counts as an author, by the others' groups instead of own ones."""
        self._salt = secrets.randbits(SALT_BITS)
        """One for all: a group is hashed once."""

    def dump(self) -> dict[str, CorroborationState]:
        """Everything, for a checkpoint."""
        return {name: known.dump() for name, known in self._of.items()}

    def restore(self, saved: Mapping[str, CorroborationState]) -> None:
        """Restore what `dump` returned. Raises `ValueError` for what it cannot have returned."""
        for name, state in saved.items():
            known = Corroboration(self._settings)
            known.restore(state)
            self._of[name], self._salt = known, state.salt

    def credited(self, graded: GradedGroup, group: ReadGroup, author: str) -> GradedGroup:
        """The group with factors of its token advantages, by what the others' groups bear out; `author` is what its
        worker counts as."""
        if not self._settings.enabled:
            return graded
        known = self._of.setdefault(author, Corroboration(self._settings, self._salt))
        if author != NEWCOMERS:
            for name, other in self._of.items():
                if name != author:
                    other.learn([group], [0.0])
        (factors,) = known.credited([[author]], [group])
        return replace(graded, factors=factors)


MAX_SENDERS = 1_024


class EvaluationWatch:
    """Detects that a learner's accuracy on held-out questions has fallen: the one measure that no worker can state."""

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._best: tuple[float, float] | None = None
        """Accuracy and its variance."""
        self._evaluated_at: int | None = None
        self._senders: Counter[str] = Counter()
        """Senders of the groups used since the last good evaluation."""

    def used(self, senders: Sequence[str]) -> None:
        """Remember the authors of an update's groups."""
        self._senders.update(senders)
        if len(self._senders) > MAX_SENDERS:
            self._senders = Counter(dict(self._senders.most_common(MAX_SENDERS)))

    def observe(self, round: int, accuracy: float, num_questions: int) -> Alarm | None:
        """Add the evaluation after `round`, once; an alarm if it is far below the best."""
        if round == self._evaluated_at or num_questions == 0:
            return None
        self._evaluated_at = round
        variance = accuracy * (1 - accuracy) / num_questions
        best = self._best
        if best is None or accuracy >= best[0]:
            self._best = accuracy, variance
        if best is None or not self._has_fallen(best, accuracy, variance):
            self._senders.clear()
            return None
        senders = tuple(sender for sender, _ in self._senders.most_common())
        self._best = None  # otherwise an accuracy that never recovers would raise alarms forever
        self._senders.clear()
        return Alarm(best[0], accuracy, senders, 0)

    def _has_fallen(self, best: tuple[float, float], accuracy: float, variance: float) -> bool:
        lost = best[0] - accuracy
        error = math.sqrt(best[1] + variance)
        return lost > self._settings.drop * best[0] and lost > self._settings.sigmas * error
