"""Code around the work of every role: exchange of groups, evaluation, the metrics file, resuming and ending."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec.structs import replace

from nodes.boot.directory import running_nodes
from nodes.boot.manifest import check_group_size
from swarm.config import NodeConfig
from swarm.distribution import versions
from swarm.environments.judge import unjudged
from swarm.errors import CheckpointError, ConfigError, Interrupted, SwarmError
from swarm.evaluation import Evaluation, evaluate
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits
from swarm.net.services.usage import GroupUsage, serve_usage, usage_by
from swarm.net.trust.credit import statement
from swarm.net.trust.exchange import Exchange
from swarm.policy.config import PolicySettings, local_name
from swarm.protocols import RECORDED, RolloutEngine, Transport, Verifier
from swarm.reasons import Reason
from swarm.received.corroboration import CorroborationState
from swarm.received.pool import PooledGroup
from swarm.sapo.curriculum import Bucket, TaskSuccess
from swarm.sapo.mixing import MixState
from swarm.sapo.watch import RewardGuard
from swarm.teaching import TeacherState
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
from swarm.types import Estimate, MemberSummary
from swarm.types.bounds import MAX_TOLD_TASKS
from swarm.types.runs import Tries

if TYPE_CHECKING:  # most of it needs torch, and not every role has a policy
    from nodes.roles.ranks import RankGroup
    from nodes.roles.suites import NodeSuites
    from swarm.policy.loading import Policy
    from swarm.policy.ranks import Ranks
    from swarm.training.checkpoint import CheckpointStore, TrainingState

NEIGHBOURS_EVERY_S = 30.0
EndReason = Literal["done", "interrupted", "error"]


class ReceivedGroups(Protocol):
    """Received groups that wait for an update: a peer's pool, a learner's buffer."""

    def dump(self) -> list[PooledGroup]:
        """The groups for a checkpoint."""

    def restore(self, groups: Iterable[PooledGroup]) -> None:
        """Restore a checkpoint's groups."""

    def num_unused(self) -> int:
        """Number of unused groups."""


@dataclass(frozen=True)
class NodeParts:
    """What a node of any role is made of, on an open transport."""

    config: NodeConfig
    identity: Identity
    transport: Transport
    verifier: Verifier
    cancelled: Callable[[], bool] = lambda: False
    """Whether it is to stop."""
    progress: Callable[[int, int], None] | None = None
    """Called while its policy is made, with steps done and in all."""
    ranks: Ranks | None = None
    """Its processes, of which this is the first; by default this one alone."""
    clock: Callable[[], float] = time.time

    def check_one_process(self, role: str) -> None:
        """Raises `ConfigError` where a role that runs in one process has several."""
        if self.ranks is not None and self.ranks.size > 1:
            raise ConfigError(f"a {role} runs in one process, got {self.ranks.size}: start one for each GPU instead")


class RoleRuntime:
    """The parts around a role, which provides its steps and their figures."""

    def __init__(self, parts: NodeParts) -> None:
        """Raises `ConfigError` for an unavailable sink, and for larger groups than those of the run."""
        config, identity, transport, verifier = parts.config, parts.identity, parts.transport, parts.verifier
        check_group_size(config.generation.group_size, transport.manifest())
        limits = Limits(config.network.max_record_bytes, config.network.max_completion_chars)
        self.exchange = Exchange(
            transport,
            identity,
            limits,
            config.network.safety,
            offer_life_s=config.network.backfill_s,
            clock=parts.clock,
        )
        serve_usage(transport, self._usage_of)
        self._worth: Mapping[str, Estimate] = {}
        """Worth of others' groups to this node by author, as far as it is known."""
        self.measured = b""
        """Its statement for members."""
        self._success = TaskSuccess()
        self._wants: Mapping[str, float] = {}
        """Learnability by task; replaced as a whole, because the network thread reads it."""
        self.peer_id = identity.peer_id
        self.samples = SampleLog(config.out, config.telemetry, identity.peer_id)
        self.config = config
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
        self.evaluated: tuple[int, Evaluation] | None = None
        """The last evaluation of this process, and the rounds made before it."""

    @property
    def max_pending_per_peer(self) -> int:
        """Most groups of one peer in verification at a time."""
        return max(1, int(self.config.verification.queue_groups * self.config.pool.max_share_per_peer))

    def max_group_size(self) -> int:
        """Most completions of a received group: those of the run's groups. Nothing arrives before the run is known."""
        manifest = self._transport.manifest()
        return manifest.group_size if manifest is not None else self.config.generation.group_size

    def count_also(self, prefix: str, counters: Callable[[], dict[str, int]]) -> None:
        """Put further cumulative counts into the events of rounds, named `prefix/NAME`."""
        self._counted[prefix] = counters

    def begin(self, role: str, model: str, resumed_from: int | None = None) -> None:
        """Write the start event."""
        self._write(
            StartEvent(
                time=time.time(),
                peer_id=self.peer_id,
                run_id=self._transport.status().run_id,
                name=self.config.called(self.peer_id),
                role=role,
                model=model,
                rounds=self.config.rounds,
                config=self.config.model_dump(mode="json"),
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

    def record(
        self, event: RoundEvent, tries: Tries | None = None, measured: Mapping[str, Estimate] | None = None
    ) -> None:
        """Write the event of a round, step or batch; adds time, network state and counters to the role's figures.

        Members learn `tries` and what authors' groups are worth, as `measured`, if the user wants that.
        """
        self.note_refusals(event.groups)
        self._worth = event.worth.senders if event.worth else {}
        self._success.note(event.tasks)
        self._wants = self._success.learnability(MAX_TOLD_TASKS)
        share = self.config.share
        stated = {author: worth for author, worth in (measured or {}).items() if author != RECORDED}
        self.measured = statement(stated) if share.worth else b""
        summary = replace(self._summary(event), tries=tries or {}) if share.summary else None
        self._transport.summarize(summary, self.measured)
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
        at, result = self.evaluated or (0, None)
        return MemberSummary(
            rounds=event.round,
            given=event.groups["shared"],
            used=event.groups["used_external"],
            correct=result.num_correct if result else 0,
            asked=result.num_questions if result else 0,
            evaluated_at=at,
            weights=known.version if known else None,
        )

    def note_refusals(self, groups: GroupCounts) -> None:
        """Note when many of others' groups are dropped because of a difference between the nodes, and what helps."""
        for line in self._refusals.look(groups["dropped"]):
            self.note(line, "warning")

    def note(self, text: str, level: str = "info", alert: str = "") -> None:
        """Write a note for people; `alert` is the key of the alert that it reports."""
        self._write(NoteEvent(time=time.time(), text=text, level=level, alert=alert))

    def _write(self, event: Event) -> None:
        self._metrics.write(event)
        self._alerts.read_event(event)

    def paused(self, why: str, until: float | None) -> None:
        """Write that the node pauses, or pauses for another reason."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()
        self._write(PauseEvent(time=time.time(), why=why, until=until))

    def resumed(self) -> None:
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
        from nodes.roles.suites import NodeSuites

        self._suites = NodeSuites(self.config, policy, self._write, cancelled, between)
        return self._suites

    def evaluate_at_start(self, engine: RolloutEngine, round: int) -> None:
        """Evaluate before the first round, suites included; later, make up for an evaluation that was interrupted."""
        if round == 0:
            self._evaluate_before(engine)
        elif self._is_due(round) and not self._was_evaluated(round):
            self._evaluate(engine, round)

    def _was_evaluated(self, round: int) -> bool:
        """Whether the last evaluation, by whatever process, was after `round`."""
        last = PeerHistory.read(self.config.out / METRICS_FILE, max_rounds=1).evaluation_after()
        return last is not None and last.round == round

    def _evaluate_before(self, engine: RolloutEngine) -> None:
        if number := self.config.evaluation.num_questions:
            most = self._sampling.max_new_tokens
            self.note(
                f"asking up to {number} held-out questions before the first round, at most {most} tokens each: this "
                "takes as long as some rounds (evaluation.num_questions; 0 leaves it out)"
            )
        self._evaluate(engine, 0)
        if self._suites is not None:
            self._suites.before_the_first_round(engine)

    def _evaluate(self, engine: RolloutEngine, round: int) -> None:
        """Evaluate on held-out questions after `round` rounds, unless disabled."""
        settings = self.config.evaluation
        if settings.num_questions == 0:
            return
        result = evaluate(engine, unjudged(self._verifier), self._sampling, settings.num_questions, settings.stream)
        self.evaluated = round, result
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

    def _usage_of(self, peer_id: str) -> GroupUsage:
        """What became of a peer's groups here, for that peer; on the network thread."""
        known = self.exchange.book.find(peer_id)
        if known is None:
            return GroupUsage()
        worth = self._worth.get(peer_id) if self.config.share.worth else None
        return usage_by(known.received, known.used, known.dropped, worth, self._wants)

    def has_enough(self, round: int) -> bool:
        """Whether `round` reaches the requested number."""
        return self.config.rounds is not None and round >= self.config.rounds

    def do_what_is_due(self, engine: RolloutEngine, round: int, save: Callable[[], None]) -> None:
        """After a step: evaluate if due, unless the final evaluation follows, and `save` a checkpoint if due."""
        if self._is_due(round):
            self._evaluate(engine, round)
        if round % self.config.checkpoint.every_rounds == 0:
            save()
        if self._suites is not None:  # after the checkpoint, because they may take long
            self._suites.after_round(engine, round, self.has_enough(round))

    def _is_due(self, round: int) -> bool:
        """Whether held-out questions are asked after `round`, which is not the last."""
        every = self.config.evaluation.every_rounds
        return every is not None and round % every == 0 and not self.has_enough(round)

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


class Neighbours:
    """How many other nodes train on this machine; looked up at a limited rate, because it takes a while."""

    def __init__(self, out: Path) -> None:
        """`out` is the directory of this node, which is not counted."""
        self._out = out
        self._looked_at: float | None = None
        self._number = 0

    def number(self) -> int:
        """Their number, not more than `NEIGHBOURS_EVERY_S` ago."""
        if self._looked_at is None or time.monotonic() - self._looked_at >= NEIGHBOURS_EVERY_S:
            self._looked_at = time.monotonic()
            others = (folder for folder in running_nodes() if folder.resolve() != self._out.resolve())
            self._number = sum((folder / METRICS_FILE).exists() for folder in others)
        return self._number


class Checkpoints:
    """The checkpoints of a node that trains: saves its state, resumes and rolls back."""

    def __init__(
        self, runtime: RoleRuntime, store: CheckpointStore, ranks: RankGroup, watch: RewardGuard, role: str
    ) -> None:
        """`store` is that from which `ranks` was loaded."""
        self._runtime = runtime
        self._store = store
        self._ranks = ranks
        self._watch = watch
        self._role = role
        self._saved_round: int | None = None
        self.resumed_from: int | None = None
        """The round of the checkpoint from which this process started, if there was one."""

    def resume(self, found: Path | None, groups: ReceivedGroups, ledger: Ledger) -> TrainingState | None:
        """Restore what every training node has from the state in `found`; the role restores the rest of it.

        Raises `CheckpointError` for another model.
        """
        state, runtime = self._ranks.resumed, self._runtime
        if found is None or state is None:
            return None
        check_model(found, state, runtime.config.policy)
        if state.peer_id != runtime.peer_id:
            runtime.note(f"the checkpoint belongs to {state.peer_id}; this node now has another peer id", "warning")
        groups.restore(state.pool)
        ledger.restore(state.ledger)
        runtime.exchange.book.restore(state.sequences)
        # The checkpoint lacks groups that were being regraded when it was written.
        ledger.dropped(Reason.LOST_IN_RESTART, ledger.unaccounted(groups.num_unused(), 0))
        if state.watch is not None:
            self._watch.restore(state.watch)
        self._store.resume(state)
        self._saved_round = self.resumed_from = state.round
        return state

    @contextmanager
    def restoring_evidence(self) -> Iterator[None]:
        """What the role restores of authors: a `ValueError` becomes a `CheckpointError`."""
        try:
            yield
        except ValueError as error:
            number = self.resumed_from
            raise CheckpointError(
                f"the checkpoint of round {number} holds no usable evidence about authors: {error}; move "
                f"{self._store.root} away to start over, or choose another directory with --out"
            ) from error

    def save(
        self,
        round: int,
        groups: ReceivedGroups,
        ledger: Ledger,
        *,
        position: int = 0,
        tokens_generated: int = 0,
        num_passed_over: int = 0,
        curriculum: Mapping[str, Bucket] = MappingProxyType({}),
        mix: MixState | None = None,
        corroboration: CorroborationState | None = None,
        workers: Mapping[str, CorroborationState] = MappingProxyType({}),
        imitated: int = 0,
        recorded: Mapping[str, int] = MappingProxyType({}),
        teachers: Mapping[str, TeacherState] = MappingProxyType({}),
    ) -> None:
        """Write a checkpoint of the finished rounds, unless it exists. Those by name: see `TrainingState`."""
        if self._saved_round == round:
            return
        from swarm.training.checkpoint import TrainingState

        state = TrainingState(
            peer_id=self._runtime.peer_id,
            model=self._ranks.policy.name,
            origin=self._ranks.policy.origin,
            role=self._role,
            round=round,
            version=self._ranks.version,
            position=position,
            pool=groups.dump(),
            ledger=ledger.snapshot(),
            tokens_generated=tokens_generated,
            sequences=self._runtime.exchange.book.highest_sequences(),
            num_passed_over=num_passed_over,
            curriculum=dict(curriculum),
            mix=mix,
            watch=self._watch.dump(),
            corroboration=corroboration,
            workers=dict(workers),
            imitated=imitated,
            recorded=dict(recorded),
            teachers=dict(teachers),
        )
        config = self._runtime.config.model_dump_json(indent=1)
        path = self._ranks.save(self._store, state, config, well=self._watch.well)
        self._saved_round = round
        self._runtime.saved(round, path)

    def outdate(self) -> None:
        """What is saved is no longer what there is, although the round is the same."""
        self._saved_round = None

    def roll_back(self) -> str:
        """Roll back to the last good checkpoint, and trust the later ones no more; returns what was done.

        The role then saves at once: after a kill it would resume what others have harmed, and learn from them.
        """
        good, outcome = self._store.good, "there is no good checkpoint to roll back to"
        if good is not None:
            try:
                self._ranks.go_back(good)
                outcome = f"rolled back to the weights of {good.name}"
            except CheckpointError as error:
                outcome = f"no rollback: {error}"
        self._store.distrust()
        self.outdate()
        return outcome


def check_model(checkpoint: Path, state: TrainingState, settings: PolicySettings) -> None:
    """Raises `CheckpointError` when the checkpoint's model is not the configured one."""
    from swarm.training.checkpoint import is_of

    if is_of(state, settings):
        return
    name, revision = local_name(settings.model), f" at {settings.revision}" if settings.revision else ""
    of_that_name = ", another one of that name" if name == state.model else ""
    raise CheckpointError(
        f"{checkpoint} has model {state.model!r}, but the configuration has {name!r}{revision}{of_that_name}; choose "
        "another directory with --out, or the checkpoint's model"
    )
