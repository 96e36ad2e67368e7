"""`swarm join`: one peer that trains in a swarm by SAPO rounds, or alone while it finds none."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from nodes.boot.directory import CHECKPOINTS
from nodes.boot.manifest import unreadable_tasks
from nodes.roles.ranks import NO_CUSTOM_PARTS, CustomParts, PeerRanks
from nodes.roles.role import RoleNode
from nodes.roles.runtime import Checkpoints, EndReason, NodeParts
from swarm.config import NodeConfig
from swarm.environments.config import custom_tool_tasks
from swarm.errors import ConfigError, Interrupted
from swarm.figures import finite
from swarm.groups.building import Member
from swarm.groups.flow import BATCHES_A_CALL
from swarm.kinds import extra
from swarm.machine import ProcessorTime
from swarm.net.roster import build_roster, write_roster
from swarm.policy.config import public_name
from swarm.policy.ranks import Ranks
from swarm.preflight.duties import PEER
from swarm.protocols import GradientSketcher, KeepSample, Updater
from swarm.sanitize import clean
from swarm.sapo.external import ExternalSettings
from swarm.sapo.rollouts import RolloutPlan
from swarm.sapo.round import Parts, RoundReport, SapoNode, SapoSettings
from swarm.sapo.watch import Alarm
from swarm.sapo.worth import WorthEstimator
from swarm.teaching import TeacherState
from swarm.telemetry.records import MixDecision, RoundEvent
from swarm.training.checkpoint import CheckpointStore
from swarm.training.config import DemonstrationSettings
from swarm.types import PolicyId, RolloutGroup
from swarm.types.questions import stream_seed

ROSTER_EVERY_S = 10.0
MAX_TOKEN_CHARS = 40
SPEED_ROUNDS = 10
"""Rounds in the mean of tokens per second."""


class Recorded(Protocol):
    """Groups of a file that join those received."""

    num_joined: int
    """Those that have joined."""

    def take(self) -> Sequence[RolloutGroup]:
        """Those that join in one more round."""


class Adoption(Protocol):
    """What a peer does with the policies of others, between its rounds."""

    def look(self) -> None:
        """Adopt a newer policy if it is better. Raises what an evaluation does."""

    def close(self) -> None:
        """Receive no more."""


class Distillation(Protocol):
    """What a peer teaches others, and learns from its teachers."""

    updater: Updater
    sketcher: GradientSketcher
    """Those of the node, with what teachers say."""
    keep: KeepSample
    notes: Sequence[str]
    """Lines for the start."""

    def dump(self) -> Mapping[str, TeacherState]:
        """What is known of the teachers, for a checkpoint."""

    def restore(self, states: Mapping[str, TeacherState]) -> None:
        """Go on with what `dump` gave. Raises `ValueError` for what it never gives."""

    def between_rounds(self) -> None:
        """Ask about the round's groups, and answer students."""

    def close(self) -> None:
        """Answer no more."""


class PeerNode(RoleNode):
    """One peer, resumed from its newest checkpoint or new, on an open transport."""

    role = "peer"
    duties = PEER
    alone = "training alone"
    custom: ClassVar[CustomParts] = NO_CUSTOM_PARTS

    @classmethod
    def plan(cls, config: NodeConfig) -> list[tuple[str, str]]:
        """See `RoleNode`."""
        generation, mix, network = config.generation, config.mix, config.network
        # The run's founder may have set these limits.
        limits = (
            f"groups of at most {network.max_record_bytes / 1e6:g} MB, with completions of at most "
            f"{network.max_completion_chars:,} characters"
        )
        questions = config.num_questions(config.policy.device.partition(":")[0])
        return [
            ("per round", f"{questions} questions x {generation.group_size} completions"),
            ("per update", f"{mix.local} local + {mix.external} external groups, {mix.policy} mix"),
            ("from others", limits),
            *([("trusted for their tools", ", ".join(config.trusted))] if config.trusted else []),
        ]

    def __init__(self, parts: NodeParts) -> None:
        """Load everything. Raises `PolicyError`, `CheckpointError`, `ConfigError`, `EngineError`."""
        super().__init__(parts)
        config, runtime, ranks = parts.config, self._runtime, parts.ranks or Ranks()
        store = CheckpointStore(config.out / CHECKPOINTS, config.checkpoint.keep)
        found = store.newest()
        self._ranks = PeerRanks(config, found, ranks, parts.cancelled, parts.progress, self.custom)
        self._open.callback(self._ranks.close)
        self._clock = parts.clock
        self._num_ranks = ranks.size
        self._tokens = 0
        self._imitated = 0
        """Supervised steps taken."""
        self._begun = False
        self._recorded: Recorded | None = None
        self._num_joined: dict[str, int] = {}
        """Recorded groups that had joined at the last checkpoint, by file."""
        self._roster_at = -math.inf
        self._speed: float | None = None
        self._processor = ProcessorTime()
        self._processor_s = 0.0
        """Processor time of the last round."""
        self._num_unasked = 0
        self._problem = ""
        self.policy = self._ranks.policy
        """What it trains and samples with."""
        if config.generation.max_new_tokens >= self.policy.max_positions:
            raise ConfigError(
                f"generation.max_new_tokens must be less than the {self.policy.positions} of "
                f"{self.policy.name}, got {config.generation.max_new_tokens}: that leaves no room for a question"
            )
        self._distillation = self._make_distillation()
        # It reads the gradients of the node's own updater, which a user's updater need not take.
        self._worth = None if self.custom.updater else self._make_worth()
        self._node = self._make_node()
        self._checkpoints = Checkpoints(runtime, store, self._ranks, self._node.external.watch, "peer")
        if (state := self._checkpoints.resume(found, self._node.external.pool, self._node.ledger)) is not None:
            self._node.round, self._node.position = state.round, state.position
            self._tokens = state.tokens_generated
            self._imitated, self._num_joined = state.imitated, dict(state.recorded)
            self._node.curriculum.restore(state.curriculum)
            if state.mix is not None:
                self._node.external.mixer.restore(state.mix)
            if state.corroboration is not None:
                with self._checkpoints.restoring_evidence():
                    self._node.external.corroboration.restore(state.corroboration)
            if self._distillation is not None:
                with self._checkpoints.restoring_evidence():
                    self._distillation.restore(state.teachers)
        self._adoption = self._make_adoption()
        suites = runtime.prepare_suites(self.policy, parts.cancelled, self._node.external.receive)
        self._open.callback(suites.close)
        self._open.callback(self._node.close)  # first: batches generated ahead are lost, and regenerated by a restart

    @property
    def round(self) -> int:
        """Rounds finished."""
        return self._node.round

    @property
    def done(self) -> bool:
        """Whether all requested rounds are finished."""
        return self._runtime.has_enough(self._node.round)

    def begin(self) -> None:
        """Write the start event; evaluate if due. Raises `Interrupted`; can then be called again."""
        if self._adoption is not None and self._num_ranks > 1:
            raise ConfigError("a peer that follows a learner runs in one process: omit --follow, or torchrun")
        if not self._begun:
            self._begun = True
            self._write_start(self._checkpoints.resumed_from)
            self.note(str(self._ranks.choice), self._ranks.choice.level)
            for line in self._distillation.notes if self._distillation else ():
                self.note(line)
            if (path := self._config.pool.recorded) is not None:
                per_round, before = self._config.pool.recorded_per_round, self._num_joined.get(str(path), 0)
                self._recorded = extra("recorded.author").RecordedAuthor.of(path, per_round, before, self.note)
            if self._worth is not None and self._worth.refusal is not None:
                self.note(f"what others' groups do for this node is not measured: {self._worth.refusal}")
        self._pausing.wait()
        if self._node.round == 0 and self._config.demonstrations.path is not None:
            self._imitate(self._config.demonstrations)
        self._runtime.evaluate_at_start(self._ranks, self._node.round)
        self._runtime.start_clock()

    def leave_out(self, seconds: float) -> None:
        """Do not count time that has just passed, in which `step` was not called."""
        self._runtime.leave_out(seconds)

    def _work(self) -> None:
        """One round, due evaluations and checkpoints, and a comparison with the learner that it follows, if any."""
        self._runtime.samples.begin(self._node.round + 1)
        if self._recorded is not None:
            self._runtime.exchange.join(self._recorded.take())
        before = self._processor.seconds()
        report = self._node.run_round()
        if self._distillation is not None:
            self._distillation.between_rounds()
        self._processor_s = self._processor.seconds() - before
        self._record(report)
        self._note_unasked(report.num_unasked)
        self._note_problem(report.problem)
        if self._config.update.reference == "best" and self._node.external.watch.is_best:
            self._ranks.renew_reference()
        if report.alarm is not None:
            self._go_back(report.alarm)
        self._node.curriculum.hear(each.summary.tries for each in self._transport.peers() if each.summary)
        self.write_roster()
        self._runtime.do_what_is_due(self._ranks, report.round, self.save)
        if self._adoption is not None:
            self._adoption.look()

    def write_roster(self) -> None:
        """Write the list of peers and their usefulness, at a limited rate."""
        if time.monotonic() - self._roster_at >= ROSTER_EVERY_S:
            self._roster_at = time.monotonic()
            book, measured = self._runtime.exchange.book, self._runtime.measured
            write_roster(self._config.out, build_roster(self._transport, book, time.time(), measured))

    def save(self) -> None:
        """Write a checkpoint of the finished rounds, unless it exists."""
        node, path = self._node, self._config.pool.recorded
        if self._recorded is not None:
            self._num_joined = {str(path): self._recorded.num_joined}
        self._checkpoints.save(
            node.round,
            node.external.pool,
            node.ledger,
            position=node.position,
            tokens_generated=self._tokens,
            curriculum=node.curriculum.dump(),
            mix=node.external.mixer.dump(),
            corroboration=node.external.corroboration.dump(),
            imitated=self._imitated,
            recorded=self._num_joined,
            teachers=self._distillation.dump() if self._distillation else {},
        )

    def end(self, reason: EndReason) -> None:
        """Write a checkpoint, evaluate if all rounds are done, write the end event.

        `reason`: done, interrupted or error. Raises errors of the evaluation.
        """
        self._node.close()
        self._ranks.close_async_engine()
        self.save()
        self._roster_at = -math.inf  # for the report, whose figures are of the last round
        self.write_roster()
        self._runtime.end(self._node.round, reason, self._ranks, self.close)

    def on_pause(self) -> None:
        """Stop generating, and save."""
        self._node.pause()
        self.save()

    def while_paused(self) -> None:
        """Keep the list of peers up to date."""
        self.write_roster()

    def _imitate(self, settings: DemonstrationSettings) -> None:
        """The supervised steps that are left, with a checkpoint now and then. Raises `ConfigError`, `Interrupted`."""
        course = extra("recorded.course").Course.of(settings, self._config.seed or 0, self.note, self._imitated)
        while self._imitated < course.num_steps:
            if self._cancelled():
                raise Interrupted
            batch, last = course.batch(self._imitated), self._imitated + 1 == course.num_steps
            course.taken(self._imitated, self._ranks.imitate(batch, settings.learning_rate, last))
            self._imitated += 1
            self._checkpoints.outdate()
            if last or self._imitated % self._config.checkpoint.every_rounds == 0:
                self.save()

    def _note_unasked(self, count: int) -> None:
        """Say so when this machine begins to do less than the run asks for."""
        if count and not self._num_unasked:
            asked = self._config.num_questions(self.policy.device.type)
            self.note(
                f"of {asked} questions, {asked - count} were answered in {self._config.generation.round_minutes:g} "
                "minutes (generation.round_minutes): the run asks for more than this machine can do, so rounds have "
                "fewer groups, own ones and others'. A smaller --generation.group_size or --mix.local does so evenly",
                "warning",
            )
        self._num_unasked = count

    def _note_problem(self, problem: str) -> None:
        """Say so when rounds begin to have no groups of this node's own."""
        if problem and not self._problem:
            text = f"no question of round {self._node.round} has a group; {problem}"
            self.note(text, "warning", alert="no-groups")
        self._problem = problem

    def _go_back(self, alarm: Alarm) -> None:
        """Roll back to the policy before it learned from harmful groups."""
        outcome = self._checkpoints.roll_back()
        self.save()
        if alarm.tokens:
            habit = ", ".join(repr(clean(self.policy.decode([token]), MAX_TOKEN_CHARS)) for token in alarm.tokens)
            what = f"its own completions took up {habit}, which earns nothing; {outcome}"
        else:
            what = (
                f"its mean reward fell from {alarm.before:.3f} to {alarm.after:.3f}; {outcome}; {alarm.rest_rounds} "
                "rounds without external groups"
            )
        peers = ", ".join(alarm.senders)
        self.note(f"other peers' groups harmed this node: {what}; merits reset for these peers: {peers}", "warning")

    def _make_node(self) -> SapoNode:
        config = self._config
        num_questions = config.num_questions(self.policy.device.type)
        settings = SapoSettings(
            rollouts=RolloutPlan(
                num_questions=num_questions,
                group_size=config.generation.group_size,
                draws_per_question=config.generation.draws_per_question,
                ask_on_s=config.generation.ask_on_s if self._num_ranks == 1 else 0.0,
                max_staleness=config.generation.max_staleness,
                limit_s=config.generation.round_s if self._num_ranks == 1 else math.inf,
                max_sequences=config.generation.max_batch_sequences,
                # vLLM keeps all media of a call.
                batches_a_call=BATCHES_A_CALL if self.policy.media is None else 1,
            ),
            external=ExternalSettings(
                mix=config.mix,
                pool=config.pool,
                plausibility=config.plausibility,
                corroboration=config.corroboration,
                watch=config.watch,
                credit=config.update.credit,
                max_group_size=self._runtime.max_group_size(),
                max_pending_per_peer=self._runtime.max_pending_per_peer,
                trusted=config.trusted,
                num_questions=0 if config.generation.max_staleness else num_questions,
                num_steps=config.update.num_minibatches,
                has_penalty=config.update.has_penalty,
                unreadable=unreadable_tasks(self._transport.manifest(), self.policy.modalities),
            ),
            share=config.share,
            unshared=() if self._identity.peer_id in config.trusted else custom_tool_tasks(config.tasks),
        )
        policy_id = PolicyId(public_name(config.policy.model), self.policy.tokenizer_hash, 0)
        seed = config.seed if config.seed is not None else stream_seed(self._identity.peer_id)
        me = Member(self._identity.peer_id, policy_id, config.generation.sampling(), seed, self._clock)
        parts = Parts(
            engine=self._ranks,
            verifier=self._verifier,
            updater=self._distillation.updater if self._distillation else self._ranks,
            exchange=self._runtime.exchange,
            worth=self._worth,
        )
        return SapoNode(
            settings, me, parts, self._distillation.keep if self._distillation else self._runtime.samples.keep
        )

    def _make_distillation(self) -> Distillation | None:
        """None for a peer without teachers and students."""
        config = self._config
        if not config.learn_from and not config.teach.passes_per_min:
            return None
        distillation: Distillation = extra("distill.node").Distillation(
            config,
            self._identity,
            self._transport,
            self._verifier,
            self._ranks,
            self._runtime.samples.keep,
            self._runtime.count_also,
        )
        self._open.callback(distillation.close)
        return distillation

    def _make_worth(self) -> WorthEstimator | None:
        """None for a node that is not to measure, or learns only from its own groups."""
        every, mix = self._config.telemetry.worth_every_rounds, self._config.mix
        if every == 0 or (mix.policy == "fixed" and mix.external == 0):
            return None
        sketcher = self._distillation.sketcher if self._distillation else self._ranks.sketcher
        return WorthEstimator(sketcher, every, mix.local + mix.external, self._config.update.num_minibatches)

    def _make_adoption(self) -> Adoption | None:
        """None for a peer that follows no learner."""
        if self._config.follow.learner is None:
            return None
        adoption: Adoption = extra("learner.roles.adoption").SnapshotAdoption(
            self._config.follow.learner, self._runtime, self._transport, self.policy, self._ranks, self._verifier
        )
        self._open.callback(adoption.close)
        return adoption

    def _record(self, report: RoundReport) -> None:
        self._tokens += report.num_tokens
        speed = report.num_tokens / sum(report.timings.values())
        decision = report.mix.decision
        self._speed = speed if self._speed is None else self._speed + (speed - self._speed) / SPEED_ROUNDS
        self._runtime.record(
            RoundEvent(
                round=report.round,
                reward=report.reward,
                groups=self._node.ledger.snapshot(),
                local_shortfall=report.mix.local_shortfall,
                external_shortfall=report.mix.external_shortfall,
                filled=report.mix.filled,
                mix=MixDecision(self._config.mix.policy, decision.local, decision.external, decision.reason),
                pool=self._node.external.pool.num_unused(),
                pending=self._node.external.num_pending,
                tokens_generated=self._tokens,
                tokens_per_s=self._speed,
                figures=finite({**report.figures, **report.update.figures}),
                tasks=report.tasks,
                timings=report.timings,
                processor_s=self._processor_s if self._num_ranks == 1 else None,  # others' processes are not seen here
                problem=report.problem,
                worth=report.worth,
            ),
            self._node.curriculum.tries(),
            self._worth.measured() if self._worth is not None else None,
        )
