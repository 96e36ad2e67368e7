"""Code around the work of every role: exchange of groups, evaluation, the metrics file, resuming and ending."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, Protocol

from msgspec.structs import replace

from nodes.neighbours import Neighbours
from nodes.roles.run import check_group_size
from nodes.roles.suites import NodeSuites
from nodes.roles.versions import versions
from swarm.config import NodeConfig
from swarm.errors import CheckpointError, Interrupted, SwarmError
from swarm.evaluation import Evaluation, evaluate
from swarm.judging.opening import unjudged
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits
from swarm.net.trust.exchange import Exchange
from swarm.policy.config import PolicySettings, local_name
from swarm.policy.loading import Policy
from swarm.protocols import RolloutEngine, Transport, Verifier
from swarm.reasons import Reason
from swarm.received.pool import PooledGroup
from swarm.telemetry.alerts import AlertWatch, RefusalWatch, slowed
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import (
    METRICS_FILE,
    CheckpointEvent,
    EndEvent,
    EvaluationEvent,
    Event,
    GroupCounts,
    NoteEvent,
    PauseEvent,
    ResumeEvent,
    RoundEvent,
    StartEvent,
)
from swarm.telemetry.samples import SampleLog
from swarm.telemetry.sinks import MetricsWriter
from swarm.training.checkpoint import CheckpointStore, TrainingState, is_of
from swarm.types import MemberSummary

CHECKPOINTS = "checkpoints"
EndReason = Literal["done", "interrupted", "error"]


class Held(Protocol):
    """Received groups that wait for an update: a peer's pool, a learner's buffer."""

    def restore(self, groups: Iterable[PooledGroup]) -> None:
        """Restore a checkpoint's groups."""
        ...

    def num_unused(self) -> int:
        """Number of unused groups."""
        ...


class Shell:
    """Wraps a role, which provides its steps and their figures."""

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        transport: Transport,
        verifier: Verifier,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A shell on an open transport.

        Raises `ConfigError` for an unavailable sink, and for larger groups than those of the run.
        """
        check_group_size(config.generation.group_size, transport.manifest())
        limits = Limits(config.network.max_record_bytes, config.network.max_completion_chars)
        self.exchange = Exchange(
            transport,
            identity,
            limits,
            config.network.safety,
            offer_life_s=config.network.backfill_s,
            clock=clock,
        )
        self.peer_id = identity.peer_id
        self.samples = SampleLog(config.out, config.telemetry, identity.peer_id)
        self._config = config
        self._transport = transport
        self._verifier = verifier
        self._counted = {"network": transport.counters, "verifier": verifier.counters}
        """What a round's event counts, by the prefix of the names there."""
        self._sampling = config.generation.sampling()
        self._metrics = MetricsWriter(config.out, config.telemetry)
        self._refusals = RefusalWatch()
        self._alerts = AlertWatch(PeerHistory(config.out / METRICS_FILE, config.name, max_rounds=1))
        self._neighbours = Neighbours(config.out)
        self._suites: NodeSuites | None = None
        self._began = time.monotonic()
        self._paused_at: float | None = None
        self._evaluated: Evaluation | None = None
        """The last one of this process."""
        self._evaluated_at = 0

    @property
    def max_pending_per_peer(self) -> int:
        """Most groups of one peer in verification at a time."""
        return max(1, int(self._config.verification.queue_groups * self._config.pool.max_share_per_peer))

    def max_group_size(self) -> int:
        """Most completions of a received group: those of the run's groups. Nothing arrives before the run is known."""
        manifest = self._transport.manifest()
        return manifest.group_size if manifest is not None else self._config.generation.group_size

    def count_also(self, prefix: str, counters: Callable[[], dict[str, int]]) -> None:
        """Put further cumulative counts into the events of rounds, named `prefix/NAME`."""
        self._counted[prefix] = counters

    def begin(self, resumed_from: int | None = None) -> None:
        """Write the start event."""
        self._write(
            StartEvent(
                time=time.time(),
                peer_id=self.peer_id,
                run_id=self._transport.status().run_id,
                name=self._config.called(self.peer_id),
                rounds=self._config.rounds,
                config=self._config.model_dump(mode="json"),
                versions=versions(),
                resumed_from=resumed_from,
            )
        )

    def start_clock(self) -> None:
        """Start timing the steps."""
        self._began = time.monotonic()

    def leave_out(self, seconds: float) -> None:
        """Do not count time that has just passed as time of training or of a pause."""
        self._began += seconds
        if self._paused_at is not None:
            self._paused_at += seconds

    def made(self, event: RoundEvent) -> None:
        """Write the event of a round, step or batch; adds time, network state and counters to the role's figures."""
        self.tell_of_refusals(event.groups)
        if self._config.share.summary:
            self._transport.summarize(self._summary(event))
        network = self._transport.status()
        self._write(
            replace(
                event,
                time=time.time(),
                wall_s=time.monotonic() - self._began,
                peers=len(network.connected),
                alone_since=network.alone_since,
                neighbours=self._neighbours.number() if slowed(self._alerts.history) else None,
                counters={
                    f"{prefix}/{name}": count
                    for prefix, counters in self._counted.items()
                    for name, count in counters().items()
                },
            )
        )
        for alert in self._alerts.look(time.time()):
            self.note(f"{alert.text} {alert.advice} {alert.more}", alert.level, alert.key)

    def _summary(self, event: RoundEvent) -> MemberSummary:
        known = event.learning or event.following
        return MemberSummary(
            rounds=event.round,
            given=event.groups["shared"],
            used=event.groups["used_external"],
            correct=self._evaluated.num_correct if self._evaluated else 0,
            asked=self._evaluated.num_questions if self._evaluated else 0,
            evaluated_at=self._evaluated_at,
            weights=known.version if known else None,
        )

    def tell_of_refusals(self, groups: GroupCounts) -> None:
        """Note when many of others' groups are dropped because of a difference between the nodes, and what helps."""
        for line in self._refusals.look(groups["dropped"]):
            self.note(line, "warning")

    def note(self, text: str, level: str = "info", alert: str = "") -> None:
        """Write a note for people; `alert` is the key of the alert that it reports."""
        self._write(NoteEvent(time=time.time(), text=text, level=level, alert=alert))

    def _write(self, event: Event) -> None:
        self._metrics.write(event)
        self._alerts.take(event)

    def paused(self, why: str, until: float | None) -> None:
        """Write that the node pauses, or pauses for another reason."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()
        self._write(PauseEvent(time=time.time(), why=why, until=until))

    def went_on(self) -> None:
        """Write that the pause is over; it does not count as time of training."""
        assert self._paused_at is not None  # `paused` was called
        paused_s = time.monotonic() - self._paused_at
        self._paused_at = None
        self.leave_out(paused_s)
        self._write(ResumeEvent(time=time.time(), paused_s=paused_s))

    def saved(self, round: int, path: Path) -> None:
        """Write the event of a complete checkpoint."""
        self._write(CheckpointEvent(time=time.time(), round=round, path=str(path)))

    def prepare_suites(self, policy: Policy, cancelled: Callable[[], bool], between: Callable[[], None]) -> NodeSuites:
        """Set up the evaluation suites of a role that trains `policy`, which closes what this returns.

        `between` is called now and then while training waits for a suite. Raises `ConfigError`.
        """
        self._suites = NodeSuites(self._config, policy, self._write, cancelled, between)
        return self._suites

    def evaluate_at_start(self, engine: RolloutEngine, round: int) -> None:
        """Evaluate before the first round, suites included; later, make up for an evaluation that was interrupted."""
        if round == 0:
            self._evaluate_before(engine)
        elif self._is_due(round) and not self._was_evaluated(round):
            self._evaluate(engine, round)

    def _was_evaluated(self, round: int) -> bool:
        """Whether the last evaluation, by whatever process, was after `round`."""
        last = PeerHistory.read(self._config.out / METRICS_FILE, max_rounds=1).evaluation_after()
        return last is not None and last.round == round

    def _evaluate_before(self, engine: RolloutEngine) -> None:
        if number := self._config.evaluation.num_questions:
            most = self._sampling.max_new_tokens
            self.note(
                f"asking {number} held-out questions before the first round, at most {most} tokens each: this takes as "
                "long as some rounds (evaluation.num_questions; 0 leaves it out)"
            )
        self._evaluate(engine, 0)
        if self._suites is not None:
            self._suites.before_the_first_round(engine)

    def _evaluate(self, engine: RolloutEngine, round: int) -> None:
        """Evaluate on held-out questions after `round` rounds, unless disabled."""
        settings = self._config.evaluation
        if settings.num_questions == 0:
            return
        result = evaluate(engine, unjudged(self._verifier), self._sampling, settings.num_questions, settings.stream)
        self._evaluated, self._evaluated_at = result, round
        self._write(
            EvaluationEvent(
                time=time.time(),
                round=round,
                accuracy=result.accuracy,
                num_questions=result.num_questions,
                tasks=result.tasks,
                samples=result.samples,
            )
        )

    @property
    def evaluated(self) -> tuple[int, Evaluation] | None:
        """The last evaluation of this process, and the rounds made before it."""
        return None if self._evaluated is None else (self._evaluated_at, self._evaluated)

    def has_enough(self, round: int) -> bool:
        """Whether `round` reaches the requested number."""
        return self._config.rounds is not None and round >= self._config.rounds

    def do_what_is_due(self, engine: RolloutEngine, round: int, save: Callable[[], None]) -> None:
        """After a step: evaluate if due, unless the final evaluation follows, and `save` a checkpoint if due."""
        if self._is_due(round):
            self._evaluate(engine, round)
        if round % self._config.checkpoint.every_rounds == 0:
            save()
        if self._suites is not None:  # after the checkpoint, because they may take long
            self._suites.after_round(engine, round, self.has_enough(round))

    def _is_due(self, round: int) -> bool:
        """Whether held-out questions are asked after `round`, which is not the last."""
        every = self._config.evaluation.every_rounds
        return every is not None and round % every == 0 and not self.has_enough(round)

    def resume(
        self, checkpoint: Path, state: TrainingState, settings: PolicySettings, held: Held, ledger: Ledger
    ) -> None:
        """Resume with a checkpoint's received groups. Raises `CheckpointError` for another model."""
        check_model(checkpoint, state, settings)
        if state.peer_id != self.peer_id:
            self.note(f"the checkpoint belongs to {state.peer_id}; this node now has another peer id", "warning")
        held.restore(state.pool)
        ledger.restore(state.ledger)
        self.exchange.book.restore(state.sequences)
        # The checkpoint lacks groups that were being regraded when it was written.
        ledger.dropped(Reason.LOST_IN_RESTART, ledger.unaccounted(held.num_unused(), 0))

    def end(
        self,
        round: int,
        reason: EndReason,
        engine: RolloutEngine | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Evaluate with `engine` if all is done, `close`, and write the end event.

        Raises errors of the evaluation.
        """
        failure: SwarmError | None = None
        try:
            if reason == "done" and engine is not None:
                self._evaluate(engine, round)
                if self._suites is not None:
                    self._suites.after_the_last(engine, round)
        except Interrupted:
            reason = "interrupted"
        except SwarmError as error:
            self.note(f"the last evaluation failed: {error}", "error")
            reason, failure = "error", error
        close()
        self._write(EndEvent(time=time.time(), round=round, reason=reason))
        self._metrics.close()
        self.samples.close()
        if failure is not None:
            raise failure


def roll_back(store: CheckpointStore, go_back: Callable[[Path], None]) -> str:
    """Roll back to the last good checkpoint with `go_back`, and trust the later ones no more; returns what was done."""
    good, outcome = store.good, "there is no good checkpoint to roll back to"
    if good is not None:
        try:
            go_back(good)
            outcome = f"rolled back to the weights of {good.name}"
        except CheckpointError as error:
            outcome = f"no rollback: {error}"
    store.distrust()
    return outcome


def check_model(checkpoint: Path, state: TrainingState, settings: PolicySettings) -> None:
    """Raises `CheckpointError` when the checkpoint's model is not the configured one."""
    if is_of(state, settings):
        return
    name, revision = local_name(settings.model), f" at {settings.revision}" if settings.revision else ""
    of_that_name = ", another one of that name" if name == state.model else ""
    raise CheckpointError(
        f"{checkpoint} has model {state.model!r}, but the configuration has {name!r}{revision}{of_that_name}; choose "
        "another directory with --out, or the checkpoint's model"
    )
