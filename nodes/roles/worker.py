"""`swarm work`: samples for a learner with its snapshots, and trains nothing.

main thread    questions, sampling, grading, sending
"install"      installs new weights in the engine, between two decode steps
"snapshots"    fetches them; "heartbeats": reports to the learner, and receives its orders
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

from nodes.roles.launch import Role
from nodes.roles.run import terms_of
from nodes.roles.shell import EndReason, Shell
from nodes.roles.snapshots import open_subscriber
from swarm.central.follower import BatchReport, Follower, SamplingPlan, SnapshotInstaller, WorkerGroups
from swarm.central.workforce import differences
from swarm.config import NodeConfig
from swarm.engines.choice import choose, look_for_vllm, open_engine
from swarm.environments.config import own_tool_tasks
from swarm.errors import ConfigError, EngineError, Interrupted
from swarm.figures import finite
from swarm.foreign import clean
from swarm.groups.building import Member, OwnGroups
from swarm.groups.flow import BATCHES_A_CALL
from swarm.net.records.identity import Identity
from swarm.net.services.requests import Heartbeats
from swarm.net.snapshots.subscribe import Subscriber
from swarm.policy.config import public_name
from swarm.policy.loading import find_device, load_policy
from swarm.policy.ranks import Ranks
from swarm.policy.snapshot import most_bytes
from swarm.policy.weights import read_snapshot
from swarm.protocols import Transport, Verifier
from swarm.schedule.pausing import Pausing
from swarm.schedule.schedule import Schedule
from swarm.telemetry.records import FollowingFigures, RoundEvent
from swarm.types import Heartbeat, Orders, PolicyId, Terms
from swarm.types.questions import stream_seed

LOOK_EVERY_S = 0.02
QUESTIONS_PER_S = 256
"""Between two processes of a worker: the stream goes on where the one before can hardly have come to. Below 2^40 for
the next century, where the substitutes of held-out questions begin."""
TELL_AFTER_S = 5.0
"""Shorter waits for room are the ordinary pace of a network that is slower than the engine."""


class WorkerNode:
    """A worker with its learner's snapshots and orders, and metrics."""

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        transport: Transport,
        verifier: Verifier,
        cancelled: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Load everything. Raises `PolicyError`, `ConfigError`, `EngineError`."""
        if ranks is not None and ranks.size > 1:
            raise ConfigError(f"a worker runs in one process, got {ranks.size}: start one for each GPU instead")
        self._config = config
        self._identity = identity
        self._transport = transport
        self._verifier = verifier
        self._cancelled = cancelled
        self._shell = Shell(config, identity, transport, verifier)
        device = find_device(config.policy.device)
        look = partial(look_for_vllm, config.generation.vllm.python)
        self._choice = choose(
            config.generation, config.policy.model, device.type, 1, look, config.policy.routing_replay
        )
        # A worker trains nothing: vLLM's copy of the weights is the only one that the GPU needs.
        self._policy = load_policy(config.policy, progress=progress, only_handed_over=self._choice.name == "vllm")
        self._open = contextlib.ExitStack()
        self._engine = open_engine(self._choice, self._policy, config.policy, config.generation, cancelled, device)
        self._open.callback(self._engine.close)
        self._engine.check(config.generation.sampling())
        self._started_at = time.time()
        self._batches = 0
        self._tokens = 0
        self._paused_s = 0.0
        self._held_s = 0.0
        """Of it, for want of room, since there was room last."""
        self._learner_away = False
        """The state in the last note."""
        self._invited = True
        """Likewise."""
        self._terms = terms_of(config, self._policy)
        self._learner_s: Terms | None = None
        """The learner's terms in the last note."""
        self._problem: str | None = None
        """Why snapshots cannot be installed, in the last note."""
        self._learner_id: str | None = None
        """Known once `begin` has found it."""
        self._feed: Subscriber
        self._follower: Follower
        self._heartbeats: Heartbeats | None = None
        """None before the learner is known, and during a pause: the learner counts on others."""
        self._pausing = Pausing(
            Schedule(config.schedule, config.out), self._shell, cancelled, rest=self._rest, go_on=self._go_on
        )
        self._open.callback(self._pausing.close)
        self._reporting = contextlib.ExitStack()
        """What a pause closes."""

    @property
    def done(self) -> bool:
        """Whether the learner has finished, or all requested batches are sampled."""
        orders = self._orders()
        return self._shell.has_enough(self._batches) or (orders is not None and orders.finished)

    def begin(self) -> None:
        """Wait until the learner is known, and follow it. Raises `Interrupted`."""
        self._shell.begin()
        self.note(str(self._choice), self._choice.level)
        self._pausing.wait()
        self._learner_id = self._learner()
        room = most_bytes(self._policy.model)
        self._feed = self._open.enter_context(
            open_subscriber(self._transport, self._learner_id, self._config, max_bytes=room)
        )
        self._shell.count_also("snapshots", self._feed.counters)
        self._follower = self._make_follower()
        self._open.callback(self._follower.stop)
        self._open.enter_context(self._reporting)
        self.note(f"fetching the learner's newest snapshot, at most {room / 1e6:.1f} MB; sampling begins with it")
        self._go_on()
        self._shell.start_clock()

    def step(self) -> None:
        """One batch of questions, or a short wait. Raises `Interrupted`."""
        if self._pausing.hold():
            return
        self._transport.drain()  # discard other workers' groups
        self._shell.exchange.judge(self._feed.complaints())
        if self._config.follow.swap_in_flight:
            self._installer.check()
        else:
            self._follower.snapshots.install()
        self._tell_of_learner()
        if self._follower.lagging or not self._follower.wanted:
            self._follower.stop()
            self._follower.send()
            self._wait()
        elif self._follower.groups.held_up:
            self._follower.send()
            self._hold()
        else:
            self._record(self._follower.run_batch())

    def note(self, text: str, level: str = "info", alert: str = "") -> None:
        """Put a line for people into the metrics file."""
        self._shell.note(text, level, alert)

    def end(self, reason: EndReason) -> None:
        """Send graded groups and write the end event."""
        self._shell.end(self._batches, reason, close=self.close)

    def close(self) -> None:
        """Stop following."""
        self._open.close()

    def _rest(self) -> None:
        """Report to the learner no more, which then counts on others. Snapshots are still fetched, and passed on."""
        self._reporting.close()
        self._heartbeats = None
        if self._learner_id is not None:
            self._follower.stop()

    def _go_on(self) -> None:
        """Report to the learner, and install its snapshots."""
        if self._learner_id is None:
            return  # `begin` is not there yet
        self._heartbeats = Heartbeats(self._transport, self._learner_id, self._report)
        self._reporting.callback(self._heartbeats.close)
        if self._config.follow.swap_in_flight:
            self._installer = _InstallThread(self._follower.snapshots, self._heartbeats)
            self._reporting.callback(self._installer.close)

    def _orders(self) -> Orders | None:
        return self._heartbeats.orders if self._heartbeats is not None else None

    def _learner(self) -> str:
        if self._transport.manifest() is None:
            self.note("waiting for a member that knows the run: a learner is followed within one")
        while (manifest := self._transport.manifest()) is None:
            if self._cancelled():
                raise Interrupted("stopped before the run was known")
            time.sleep(LOOK_EVERY_S)
        return self._config.follow.learner or manifest.founder

    def _make_follower(self) -> Follower:
        config, generation, follow = self._config, self._config.generation, self._config.follow
        names = sorted(own_tool_tasks(config.tasks))
        if names and self._identity.peer_id not in config.trusted:
            raise ConfigError(
                f"a worker's episodes must be shared, but tools of your own answer {', '.join(names)}: the run's "
                f"`trusted` must list {self._identity.peer_id}"
            )
        # Without a seed, every process asks different questions, also after a restart, and the learner knows whose they
        # are: another worker's groups under its own name would be worth nothing.
        seed, first = stream_seed(self._identity.peer_id), int(self._started_at * QUESTIONS_PER_S)
        if config.seed is not None:
            seed, first = config.seed, 0
        sampling = generation.sampling()
        policy_id = PolicyId(public_name(config.policy.model), self._policy.tokenizer_hash, 0)
        own = OwnGroups(Member(self._identity.peer_id, policy_id, sampling), self._shell.exchange, token_ids=True)
        return Follower(
            SamplingPlan(
                seed,
                follow.questions,
                generation.group_size,
                sampling,
                first,
                slots=min(generation.max_batch_sequences, follow.questions * generation.group_size),
                # A snapshot is installed between two calls unless it may enter them, and vLLM keeps all media of one.
                batches_a_call=BATCHES_A_CALL if follow.swap_in_flight and self._policy.media is None else 1,
            ),
            self._engine,
            self._verifier,
            SnapshotInstaller(self._engine, self._feed, partial(read_snapshot, self._policy)),
            WorkerGroups(own, self._policy.hides, self._has_room),
            orders=self._orders,
            cancelled=self._cancelled,
            pause=self._hold,
        )

    def _tell_of_learner(self) -> None:
        """Note when the learner stops answering, which other connected peers would hide, and when it answers again.

        And what it must share with the learner and does not, and why the learner's snapshots do not fit.
        """
        assert self._heartbeats is not None  # there are some outside of pauses
        away = self._heartbeats.away
        if away and not self._learner_away:
            version = self._follower.snapshots.version
            kept = "without a snapshot so far" if version is None else f"keeping version {version}"
            self.note(f"the learner does not answer: waiting for it, {kept}", "warning")
        elif self._learner_away and not away:
            self.note("the learner answers again")
        self._learner_away = away
        orders = self._heartbeats.orders
        invited = orders is None or orders.invited
        if self._invited and not invited:
            self.note(
                "the learner takes groups only of the workers that it lists, so that this one samples nothing: ask for "
                f"{self._identity.peer_id} to be added to its learner.workers",
                "warning",
            )
        self._invited = invited
        if orders is not None and orders.terms is not None and orders.terms != self._learner_s:
            self._learner_s = orders.terms
            for line in differences(self._terms, orders.terms):
                self.note(f"the learner cannot use what this worker samples: {line}", "warning")
        version, problem = self._follower.snapshots.problem or (None, None)
        if problem is not None and problem != self._problem:
            self.note(f"the learner's version {version} cannot be installed: {clean(problem)}", "warning")
        self._problem = problem

    def _has_room(self) -> bool:
        """Whether one more group can be sent without another being lost for it."""
        if not self._transport.has_room():
            return False
        if self._held_s >= TELL_AFTER_S:
            self.note("there is room for groups again: sampling goes on")
        self._held_s = 0.0
        return True

    def _hold(self) -> None:
        """Sample nothing for a moment: there is no room for another group. Said once for each time that this lasts."""
        self._wait()
        before, self._held_s = self._held_s, self._held_s + LOOK_EVERY_S
        if before < TELL_AFTER_S <= self._held_s:
            self.note("the outbox is full of groups that nobody takes: not sampling until there is room", "warning")

    def _report(self) -> Heartbeat:
        groups = self._follower.groups
        return Heartbeat(
            started_at=self._started_at,
            version=self._follower.snapshots.version,
            num_completions=groups.num_completions,
            reward=groups.reward,
            price=self._config.follow.price,
            terms=self._terms,
        )

    def _wait(self) -> None:
        time.sleep(LOOK_EVERY_S)
        self._paused_s += LOOK_EVERY_S

    def _record(self, report: BatchReport) -> None:
        self._batches += 1
        self._tokens += report.num_tokens
        snapshots = self._follower.snapshots
        self._shell.made(
            RoundEvent(
                round=self._batches,
                reward=report.reward,
                groups=self._follower.groups.ledger.snapshot(),
                tokens_generated=self._tokens,
                tokens_per_s=report.num_tokens / report.seconds,
                figures=finite(report.figures),
                timings={"generate": report.seconds},
                following=FollowingFigures(
                    version=snapshots.version,
                    announced=snapshots.announced,
                    installed=snapshots.num_installed,
                    refused=snapshots.num_refused,
                    paused_s=self._paused_s,
                ),
            )
        )


class _InstallThread:
    """Installs every new snapshot in the engine as soon as it arrives, independently of the main thread."""

    def __init__(self, snapshots: SnapshotInstaller, heartbeats: Heartbeats) -> None:
        self._snapshots = snapshots
        self._heartbeats = heartbeats
        self._stopped = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="install", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises `EngineError` when the thread has failed."""
        if self._failed is not None:
            raise EngineError(f"snapshots are no longer installed: {self._failed}") from self._failed

    def close(self) -> None:
        """Stop installing."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(LOOK_EVERY_S):
                if self._snapshots.install():
                    self._heartbeats.soon()  # the learner measures the time of a broadcast
        except Exception as error:  # passed to the main thread, which raises it
            self._failed = error


def _plan(config: NodeConfig) -> list[tuple[str, str]]:
    generation, follow = config.generation, config.follow
    when = "between two tokens" if follow.swap_in_flight else "between two batches"
    return [
        ("per batch", f"{follow.questions} questions x {generation.group_size} completions"),
        ("learner", follow.learner or "the founder of the run"),
        ("new weights", when),
    ]


WORKER = Role("worker", WorkerNode, _plan, "waiting for the learner", invites="work", keeps_terms=True)
