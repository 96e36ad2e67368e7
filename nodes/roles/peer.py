"""A peer: SAPO rounds, with its policy, checkpoints and the list of peers in the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from nodes.roles.coordinator import NODES_OWN, OwnParts, RankCoordinator
from nodes.roles.run import unreadable_tasks
from nodes.roles.shell import CHECKPOINTS, EndReason, Shell, roll_back
from swarm.config import NodeConfig
from swarm.environments.config import own_tool_tasks
from swarm.errors import ConfigError
from swarm.figures import finite
from swarm.foreign import clean
from swarm.groups.building import Member
from swarm.groups.flow import BATCHES_A_CALL
from swarm.machine import ProcessorTime
from swarm.net.records.identity import Identity
from swarm.net.roster import build_roster, write_roster
from swarm.policy.config import public_name
from swarm.policy.ranks import Ranks
from swarm.protocols import Transport, Verifier
from swarm.sapo.ahead import RolloutPlan
from swarm.sapo.external import ExternalSettings
from swarm.sapo.round import Parts, RoundReport, SapoNode, SapoSettings
from swarm.sapo.watch import Alarm
from swarm.sapo.worth import WorthEstimator
from swarm.schedule.pausing import Pausing
from swarm.schedule.schedule import Schedule
from swarm.telemetry.records import MixDecision, RoundEvent
from swarm.training.checkpoint import CheckpointStore, TrainingState
from swarm.types import PolicyId
from swarm.types.questions import stream_seed

ROSTER_EVERY_S = 10.0
MAX_TOKEN_CHARS = 40
SPEED_ROUNDS = 10
"""Rounds in the mean of tokens per second."""


class PeerNode:
    """One peer, resumed from its newest checkpoint or new, on an open transport."""

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        transport: Transport,
        verifier: Verifier,
        cancelled: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] | None = None,
        ranks: Ranks | None = None,
        clock: Callable[[], float] = time.time,
        own: OwnParts = NODES_OWN,
    ) -> None:
        """Load everything; `ranks` are this node's processes, of which this is the first.

        Raises `PolicyError`, `CheckpointError`, `ConfigError`, `EngineError`.
        """
        self._config = config
        self._identity = identity
        self._transport = transport
        self._verifier = verifier
        self._clock = clock
        self._shell = Shell(config, identity, transport, verifier, clock)
        self._store = CheckpointStore(config.out / CHECKPOINTS, config.checkpoint.keep)
        self._tokens = 0
        self._begun = False
        self._roster_at = -math.inf
        self._speed: float | None = None
        self._processor = ProcessorTime()
        self._processor_s = 0.0
        """Of the last round."""
        self._sampling = config.generation.sampling()
        found = self._store.newest()
        self._ranks = ranks or Ranks()
        self._num_unasked = 0
        self._problem = ""
        self._coordinator = RankCoordinator(config, found, self._ranks, cancelled, progress, own)
        self._open = ExitStack()
        self._open.callback(self._coordinator.close)
        self.policy = self._coordinator.policy
        """What it trains and samples with."""
        if config.generation.max_new_tokens >= self.policy.max_positions:
            raise ConfigError(
                f"generation.max_new_tokens must be less than the {self.policy.positions} of "
                f"{self.policy.name}, got {config.generation.max_new_tokens}: that leaves no room for a question"
            )
        # It reads the gradients of the node's own updater, which a user's updater need not take.
        self._worth = None if own.updater else self._make_worth()
        self._node = self._make_node()
        self._resumed_from = (
            self._resume(found, self._coordinator.resumed) if found and self._coordinator.resumed else None
        )
        self._saved_round = self._resumed_from
        suites = self._shell.prepare_suites(self.policy, cancelled, self._node.external.receive)
        self._open.callback(suites.close)
        self._pausing = Pausing(
            Schedule(config.schedule, config.out), self._shell, cancelled, rest=self._rest, idle=self.write_roster
        )
        self._open.callback(self._pausing.close)

    @property
    def round(self) -> int:
        """Rounds finished."""
        return self._node.round

    @property
    def done(self) -> bool:
        """Whether all requested rounds are finished."""
        return self._shell.has_enough(self._node.round)

    def begin(self) -> None:
        """Write the start event; evaluate if due. Raises `Interrupted`; can then be called again."""
        if not self._begun:
            self._begun = True
            self._shell.begin(self._resumed_from)
            self.note(str(self._coordinator.choice), self._coordinator.choice.level)
            if self._worth is not None and self._worth.refusal is not None:
                self.note(f"what others' groups do for this node is not measured: {self._worth.refusal}")
        self._pausing.wait()
        self._shell.evaluate_at_start(self._coordinator, self._node.round)
        self._shell.start_clock()

    def leave_out(self, seconds: float) -> None:
        """Do not count time that has just passed, in which nobody called `step`."""
        self._shell.leave_out(seconds)

    def step(self) -> None:
        """One round, and due evaluations and checkpoints; a moment of a pause instead, if there is one.

        Raises `Interrupted` in a consistent state.
        """
        if not self._pausing.hold():
            self._work()

    def _work(self) -> None:
        """What `step` does outside of pauses."""
        self._shell.samples.begin(self._node.round + 1)
        before = self._processor.seconds()
        report = self._node.run_round()
        self._processor_s = self._processor.seconds() - before
        self._record(report)
        self._tell_unasked(report.num_unasked)
        self._tell_problem(report.problem)
        if report.alarm is not None:
            self._go_back(report.alarm)
        self.write_roster()
        self._shell.do_what_is_due(self._coordinator, report.round, self.save)

    def write_roster(self) -> None:
        """Write the list of peers and their usefulness, at a limited rate."""
        if time.monotonic() - self._roster_at >= ROSTER_EVERY_S:
            self._roster_at = time.monotonic()
            write_roster(self._config.out, build_roster(self._transport, self._shell.exchange.book, time.time()))

    def note(self, text: str, level: str = "info", alert: str = "") -> None:
        """Put a line for people into the metrics file."""
        self._shell.note(text, level, alert)

    def save(self) -> None:
        """Write a checkpoint of the finished rounds, unless it exists."""
        if self._saved_round == self._node.round:
            return
        state = TrainingState(
            peer_id=self._identity.peer_id,
            model=self.policy.name,
            origin=self.policy.origin,
            role="peer",
            round=self._node.round,
            version=self._coordinator.version,
            position=self._node.position,
            pool=self._node.external.pool.dump(),
            ledger=self._node.ledger.snapshot(),
            tokens_generated=self._tokens,
            sequences=self._shell.exchange.book.highest_sequences(),
            mix=self._node.external.mixer.dump(),
            watch=self._node.external.watch.dump(),
        )
        config = self._config.model_dump_json(indent=1)
        path = self._coordinator.save(self._store, state, config, well=self._node.external.watch.well)
        self._saved_round = self._node.round
        self._shell.saved(state.round, path)

    def end(self, reason: EndReason) -> None:
        """Write a checkpoint, evaluate if all rounds are done, write the end event.

        `reason`: done, interrupted or error. Raises errors of the evaluation.
        """
        self._node.close()
        self._coordinator.close_beside()
        self.save()
        self._shell.end(self._node.round, reason, self._coordinator, self.close)

    def close(self) -> None:
        """Stop generating; batches generated ahead are lost and regenerated after a restart."""
        self._node.close()
        self._open.close()

    def _rest(self) -> None:
        self._node.rest()
        self.save()

    def _tell_unasked(self, count: int) -> None:
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

    def _tell_problem(self, problem: str) -> None:
        """Say so when rounds begin to have no groups of this node's own."""
        if problem and not self._problem:
            text = f"no question of round {self._node.round} has a group; {problem}"
            self._shell.note(text, "warning", alert="no-groups")
        self._problem = problem

    def _go_back(self, alarm: Alarm) -> None:
        """Roll back to the policy before it learned from harmful groups."""
        outcome = roll_back(self._store, self._coordinator.go_back)
        # At once: after a kill the node would go on from what others have harmed, and learn from them.
        self._saved_round = None
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
        settings = SapoSettings(
            rollouts=RolloutPlan(
                num_questions=config.num_questions(self.policy.device.type),
                group_size=config.generation.group_size,
                max_staleness=config.generation.max_staleness,
                limit_s=config.generation.round_s if self._ranks.size == 1 else math.inf,
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
                max_group_size=self._shell.max_group_size(),
                max_pending_per_peer=self._shell.max_pending_per_peer,
                trusted=config.trusted,
                unreadable=unreadable_tasks(self._transport.manifest(), self.policy.modalities),
            ),
            share=config.share,
            unshared=() if self._identity.peer_id in config.trusted else own_tool_tasks(config.tasks),
        )
        policy_id = PolicyId(public_name(config.policy.model), self.policy.tokenizer_hash, 0)
        seed = config.seed if config.seed is not None else stream_seed(self._identity.peer_id)
        me = Member(self._identity.peer_id, policy_id, self._sampling, seed, self._clock)
        parts = Parts(
            engine=self._coordinator,
            verifier=self._verifier,
            updater=self._coordinator,
            exchange=self._shell.exchange,
            worth=self._worth,
        )
        return SapoNode(settings, me, parts, self._shell.samples.keep)

    def _make_worth(self) -> WorthEstimator | None:
        """None for a node that is not to measure, or learns from nobody else."""
        every, mix = self._config.telemetry.worth_every_rounds, self._config.mix
        if every == 0 or (mix.policy == "fixed" and mix.external == 0):
            return None
        return WorthEstimator(self._coordinator.sketcher, every, mix.local + mix.external)

    def _resume(self, checkpoint: Path, state: TrainingState) -> int:
        node = self._node
        self._shell.resume(checkpoint, state, self._config.policy, node.external.pool, node.ledger)
        node.round, node.position = state.round, state.position
        if state.mix is not None:
            node.external.mixer.restore(state.mix)
        if state.watch is not None:
            node.external.watch.restore(state.watch)
        self._store.resume(state)
        self._tokens = state.tokens_generated
        return state.round

    def _record(self, report: RoundReport) -> None:
        self._tokens += report.num_tokens
        speed = report.num_tokens / sum(report.timings.values())
        decision = report.mix.decision
        self._speed = speed if self._speed is None else self._speed + (speed - self._speed) / SPEED_ROUNDS
        self._shell.made(
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
                processor_s=self._processor_s if self._ranks.size == 1 else None,  # others' processes are not seen here
                problem=report.problem,
                worth=report.worth,
            )
        )
