"""`swarm learn`: trains one policy on its workers' rollouts, and publishes its snapshots."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, json, structs

from nodes.boot.directory import CHECKPOINTS
from nodes.roles.role import RoleNode
from nodes.roles.runtime import Checkpoints, EndReason, NodeParts
from swarm.config import NodeConfig
from swarm.errors import Interrupted
from swarm.extras.learner.audit import SnapshotAuditor
from swarm.extras.learner.heartbeats import serve_heartbeats
from swarm.extras.learner.learner import (
    EvaluationWatch,
    Learner,
    LearnerObserver,
    LearnerParts,
    LearnerTerms,
    StepReport,
)
from swarm.extras.learner.protocols import SnapshotPublisher
from swarm.extras.learner.roles.adoption import FOLDER as SNAPSHOTS, open_publisher
from swarm.extras.learner.roles.ranks import LearnerRanks
from swarm.extras.learner.terms import check_only_learner, differences, terms_of
from swarm.extras.learner.updater import of_learner
from swarm.extras.learner.workforce import FAREWELL_S, Workforce, mean_reward
from swarm.figures import finite
from swarm.files import RandomAccessFile, replace_file
from swarm.policy.loading import load_policy
from swarm.policy.ranks import Ranks
from swarm.preflight.duties import Duties
from swarm.reasons import Fate
from swarm.sapo.watch import Alarm, RewardGuard
from swarm.telemetry.records import LearningFigures, RoundEvent
from swarm.training.checkpoint import CheckpointStore
from swarm.types import GradedGroup, RolloutGroup, RunManifest, Terms

PUBLISHED_FILE = "published.json"
LOOK_EVERY_S = 0.1
MAX_NOTED = 64
"""Most workers whose differences are noted: identities are free."""


class Published(Struct, frozen=True):
    """The highest published version; a restarted learner continues above it."""

    version: int


class LearnerNode(RoleNode, LearnerObserver):
    """A learner with resuming, checkpoints, evaluation, metrics and its workers."""

    role = "learner"
    duties = Duties(asks=False, spot_checks=True)
    alone = "waiting for workers"
    invites = "work"
    founds = True

    @classmethod
    def plan(cls, config: NodeConfig) -> list[tuple[str, str]]:
        """See `RoleNode`."""
        learner, update = config.learner, of_learner(config.update)
        every = f"every {learner.period} steps" if learner.period > 1 else "after every step"
        times = update.epochs * update.num_minibatches
        several = f", in {times} optimizer steps" if times > 1 else ""
        rollouts = f"{learner.rollouts_per_step} rollouts of workers, at most {learner.max_staleness} versions old"
        return [
            ("per step", rollouts + several),
            ("a snapshot", every),
        ]

    @classmethod
    def terms(cls, config: NodeConfig) -> Terms:
        """See `RoleNode`."""
        return terms_of(config)

    @classmethod
    def check(cls, config: NodeConfig, manifest: RunManifest, peer_id: str) -> None:
        """Raises `ConfigError` for a run that another learner founded."""
        check_only_learner(peer_id, manifest)

    def __init__(self, parts: NodeParts) -> None:
        """Load everything. Raises `PolicyError`, `CheckpointError`, `ConfigError`, `EngineError`, `SnapshotError`."""
        super().__init__(parts)
        config, transport, runtime = parts.config, parts.transport, self._runtime
        store = CheckpointStore(config.out / CHECKPOINTS, config.checkpoint.keep)
        found = store.newest()
        self._ranks = LearnerRanks(config, found, parts.ranks or Ranks(), parts.cancelled, parts.progress)
        self._policy, self._updater = self._ranks.policy, self._ranks.updater
        self._terms = terms_of(config, self._policy)
        self._workforce = Workforce(config.learner, time.monotonic, self._terms, runtime.exchange.established)
        self._watch = RewardGuard(config.watch)
        self._evaluations = EvaluationWatch(config.watch)
        self._noted: set[str] = set()
        """Workers whose differences a note has named."""
        self._looked_at = 0.0
        serve_heartbeats(transport, self._workforce.beat)
        self._snapshots = self._open.enter_context(open_publisher(transport, parts.identity, config))
        runtime.count_also("snapshots", self._snapshots.counters)
        self._learner = self._make_learner()
        self._checkpoints = Checkpoints(runtime, store, self._ranks, self._watch, "learner")
        if (state := self._checkpoints.resume(found, self._learner.buffer, self._learner.ledger)) is not None:
            self._learner.round = state.round
            with self._checkpoints.restoring_evidence():
                self._learner.corroboration.restore(state.workers)
        self._rise()
        suites = runtime.prepare_suites(self._policy, parts.cancelled, self._learner.receive)
        self._open.callback(suites.close)

    @property
    def done(self) -> bool:
        """Whether all requested steps are made."""
        return self._runtime.has_enough(self._learner.round)

    def begin(self) -> None:
        """Publish the current policy; evaluate if due. Raises `Interrupted`."""
        self._write_start(self._checkpoints.resumed_from)
        self._pausing.wait()
        self._learner.publish()
        self._runtime.evaluate_at_start(self._ranks, self._learner.round)
        needed = self._config.learner.rollouts_per_step
        self.note(f"waiting for workers: a step needs {needed} of their rollouts, however long that takes")
        self._runtime.start_clock()

    def _work(self) -> None:
        """One update, and due evaluations and checkpoints."""
        self._look_at_workers()
        self._runtime.samples.begin(self._learner.round + 1)
        try:
            report = self._learner.run_step()
        except Interrupted:
            if self._cancelled():
                raise
            return  # a pause came while rollouts were missing
        self._workforce.stepped(report.version, _train_s(report), report.timings["wait"])
        rewards = self._workforce.take_rewards()
        self._record(report, mean_reward(rewards))
        self._look_back(report.senders, self._workforce.most_reach(rewards))
        self._evaluations.used(report.senders)
        self._runtime.do_what_is_due(self._ranks, report.round, self.save)
        if (evaluated := self._runtime.evaluated) is not None:
            at, result = evaluated
            if result.accuracy is not None:
                self._heed(self._evaluations.observe(at, result.accuracy, result.num_questions), "its accuracy")

    def save(self) -> None:
        """Write a checkpoint of the steps made, unless it exists."""
        learner, passed_over = self._learner, self._updater.num_passed_over
        known = learner.corroboration.dump()
        self._checkpoints.save(
            learner.round, learner.buffer, learner.ledger, num_passed_over=passed_over, workers=known
        )

    def end(self, reason: EndReason) -> None:
        """Dismiss the workers, write a checkpoint, evaluate if all steps are made, write the end event.

        Raises errors of the evaluation.
        """
        if reason == "done":
            self._dismiss()
        self.save()
        self._runtime.end(self._learner.round, reason, self._ranks)

    def on_pause(self) -> None:
        """Have the workers wait, and save."""
        self._workforce.rest()
        self.save()

    def on_resume(self) -> None:
        """Have the workers sample again."""
        self._workforce.go_on()

    def _look_back(self, senders: Sequence[str], reward: float | None) -> None:
        """Roll back if the reward has fallen that most workers report of all that they sample.

        The rewards of delivered groups would be this node's own, but these are chosen: once a task is learned, only
        its hardest questions have signal.
        """
        if reward is not None:
            self._heed(self._watch.observe(reward, 0, senders), "the reward that most workers report")

    def _heed(self, alarm: Alarm | None, what: str) -> None:
        if alarm is not None:
            self._learner.distrust(alarm.senders)
            self._go_back(alarm, what)

    def _go_back(self, alarm: Alarm, what: str) -> None:
        """Roll back to the policy before its workers' rewards fell, publish it, and continue under a new version."""
        before = self._updater.version
        outcome = self._checkpoints.roll_back()
        self.save()
        if self._updater.version > before:
            self._learner.publish()
        self.note(
            f"workers' groups harmed this learner: {what} fell from {alarm.before:.3f} to "
            f"{alarm.after:.3f}; {outcome}; merits reset for these workers: {', '.join(alarm.senders)}",
            "warning",
        )

    def _look_at_workers(self) -> None:
        """Note which workers do not share this learner's terms, and why groups are dropped; at a limited rate."""
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        for peer_id, worker in self._workforce.workers().items():
            terms = worker.heartbeat.terms
            if terms is None or peer_id in self._noted or len(self._noted) >= MAX_NOTED:
                continue
            if lines := list(differences(terms, self._terms)):
                self._noted.add(peer_id)
                self.note(f"worker {peer_id} samples what this learner cannot use: {'; '.join(lines)}", "warning")
        self._runtime.note_refusals(self._learner.ledger.snapshot())

    def keep(self, fate: Fate, group: GradedGroup | RolloutGroup) -> None:
        """See `LearnerObserver`."""
        self._runtime.samples.keep(fate, group)

    def delivered(self, peer_id: str, rollouts: int) -> None:
        """See `LearnerObserver`."""
        self._workforce.delivered(peer_id, rollouts)

    def cancelled(self) -> bool:
        """See `LearnerObserver`."""
        self._look_at_workers()
        return self._cancelled() or self._pausing.due

    def _make_learner(self) -> Learner:
        config = self._config
        terms = LearnerTerms(
            learner=config.learner,
            plausibility=config.plausibility,
            corroboration=config.corroboration,
            credit=config.update.credit,
            max_group_size=self._runtime.max_group_size(),
            max_pending_per_peer=self._runtime.max_pending_per_peer,
            trusted=config.trusted,
        )
        auditor = SnapshotAuditor(
            lambda: load_policy(config.policy),
            config.generation.sampling(),
            fraction=config.learner.spot_check,
            tolerance=config.learner.spot_check_nats,
            num_kept=config.learner.max_staleness // config.learner.period + 2,
            tries=self._workforce.tries,
        )
        parts = LearnerParts(
            updater=self._updater,
            verifier=self._verifier,
            exchange=self._runtime.exchange,
            publisher=_Numbered(self._snapshots, config.out / PUBLISHED_FILE, self._workforce),
            auditor=auditor,
            folder=config.out / SNAPSHOTS,
        )
        return Learner(terms, parts, self)

    def _rise(self) -> None:
        """Continue above every version that an earlier process published: a version number never has two meanings."""
        versions = [self._snapshots.announced()]
        with contextlib.suppress(FileNotFoundError):
            versions.append(json.decode((self._config.out / PUBLISHED_FILE).read_bytes(), type=Published).version)
        published = [version for version in versions if version is not None]
        if not published:
            return
        self._updater.rise_to(max(self._updater.version, *published) + 1)
        for reason, count in self._learner.buffer.advance(self._updater.version).items():
            self._learner.ledger.dropped(reason, count)

    def _dismiss(self) -> None:
        """Wait until every present worker has received the end of the run."""
        self._workforce.finish()
        deadline = time.monotonic() + FAREWELL_S
        while not self._workforce.all_told and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)

    def _record(self, report: StepReport, reward: float | None) -> None:
        outlook = self._workforce.outlook()
        self._runtime.record(
            RoundEvent(
                round=report.round,
                reward=reward,
                groups=self._learner.ledger.snapshot(),
                pool=self._learner.buffer.num_unused(),
                pending=self._learner.num_pending,
                figures=finite({**report.figures, **report.update.figures}),
                timings=report.timings,
                learning=LearningFigures(
                    version=report.version,
                    max_staleness=self._config.learner.max_staleness,
                    wait_s=report.timings["wait"],
                    train_s=_train_s(report),
                    workers=outlook.num_workers,
                    active=outlook.num_active,
                    rate=outlook.rate,
                    required_rate=outlook.required_rate,
                    broadcast_s=outlook.broadcast_s,
                    bubble=outlook.bubble,
                    predicted_bubble=outlook.predicted_bubble,
                ),
            )
        )


class _Numbered:
    """`SnapshotPublisher` that stores the version on disk before it publishes."""

    def __init__(self, publisher: SnapshotPublisher, file: Path, workforce: Workforce) -> None:
        self._publisher = publisher
        self._file = file
        self._workforce = workforce

    def publish(self, version: int, snapshot: RandomAccessFile) -> None:
        """Publish. See `SnapshotPublisher`."""
        replace_file(self._file, json.encode(structs.asdict(Published(version))), durable=True)
        self._workforce.published(version)
        self._publisher.publish(version, snapshot)

    def check(self) -> None:
        """See `SnapshotPublisher`."""
        self._publisher.check()


def _train_s(report: StepReport) -> float:
    """Seconds of a step without waiting for rollouts."""
    return report.timings["update"] + report.timings["publish"] + report.timings["receive"]
