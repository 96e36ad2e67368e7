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

from msgspec import Struct

from nodes.roles.role import RoleNode
from nodes.roles.runtime import EndReason, NodeParts, RoleRuntime
from swarm.config import NodeConfig, Values
from swarm.engines.choice import open_untrained
from swarm.environments.config import custom_tool_tasks
from swarm.errors import ConfigError, EngineError, Interrupted
from swarm.extras.learner.follower import BatchReport, Follower, SamplingPlan, SnapshotInstaller, WorkerGroups
from swarm.extras.learner.heartbeats import Heartbeats
from swarm.extras.learner.packing import most_bytes, read_snapshot
from swarm.extras.learner.roles.adoption import open_subscriber
from swarm.extras.learner.terms import check_terms, differences, sampling_of, terms_of
from swarm.figures import finite
from swarm.groups.building import Member, OwnGroups
from swarm.groups.flow import BATCHES_A_CALL
from swarm.policy.config import public_name
from swarm.policy.loading import Policy
from swarm.preflight.duties import Duties
from swarm.protocols import StreamingEngine, Transport, Verifier
from swarm.sanitize import clean
from swarm.telemetry.records import FollowingFigures, RoundEvent
from swarm.types import Heartbeat, Orders, PolicyId, RunManifest, Terms
from swarm.types.questions import stream_seed

LOOK_EVERY_S = 0.02
QUESTIONS_PER_S = 256
"""Between two processes of a worker: the stream continues where the one before can hardly have come to. Below 2^40 for
the next century, where the substitutes of held-out questions begin."""
NOTE_AFTER_S = 5.0
"""Shorter waits for room are the ordinary pace of a network that is slower than the engine."""


class WorkerNode(RoleNode):
    """A worker with its learner's snapshots and orders, and metrics."""

    role = "worker"
    duties = Duties(trains=False)
    alone = "waiting for the learner"
    awaits_run = True
    invites = "work"

    @classmethod
    def plan(cls, config: NodeConfig) -> list[tuple[str, str]]:
        """See `RoleNode`."""
        generation, follow = config.generation, config.follow
        when = "between two tokens" if follow.swap_in_flight else "between two batches"
        return [
            ("per batch", f"{follow.questions} questions x {generation.group_size} completions"),
            ("learner", follow.learner or "the founder of the run"),
            ("new weights", when),
        ]

    @classmethod
    def values_of(cls, manifest: RunManifest) -> Values:
        """The learner's sampling."""
        return sampling_of(manifest)

    @classmethod
    def check(cls, config: NodeConfig, manifest: RunManifest, peer_id: str) -> None:
        """Raises `ConfigError` for other terms than those of the learner that founded the run."""
        check_terms(config, manifest)

    def __init__(self, parts: NodeParts) -> None:
        """Load everything. Raises `PolicyError`, `ConfigError`, `EngineError`."""
        parts.check_one_process(self.role)
        super().__init__(parts)
        config = parts.config
        self._choice, _, self._policy, self._engine = open_untrained(
            config.policy, config.generation, parts.cancelled, parts.progress
        )
        self._open.callback(self._engine.close)
        self._batches = 0
        self._tokens = 0
        self._assignment: Assignment | None = None
        """None until `begin` knows the learner."""

    @property
    def assignment(self) -> Assignment:
        """The work for the learner that `begin` found."""
        assert self._assignment is not None
        return self._assignment

    @property
    def done(self) -> bool:
        """Whether the learner has finished, or all requested batches are sampled."""
        orders = self._assignment.orders() if self._assignment else None
        return self._runtime.has_enough(self._batches) or (orders is not None and orders.finished)

    def begin(self) -> None:
        """Wait until the learner is known, and follow it. Raises `Interrupted`."""
        self._write_start()
        self.note(str(self._choice), self._choice.level)
        self._pausing.wait()
        self._assignment = Assignment(
            self._learner(), self._runtime, self._transport, self._verifier, self._engine, self._policy, self._cancelled
        )
        self._open.callback(self._assignment.close)
        self._assignment.resume()
        self._runtime.start_clock()

    def _work(self) -> None:
        """One batch of questions, or a short wait."""
        if (report := self.assignment.step()) is not None:
            self._record(report)

    def end(self, reason: EndReason) -> None:
        """Send graded groups and write the end event."""
        self._runtime.end(self._batches, reason, close=self.close)

    def on_pause(self) -> None:
        """Stop reporting to the learner, which then counts on others. Snapshots are still fetched, and passed on."""
        if self._assignment is not None:
            self._assignment.pause()

    def on_resume(self) -> None:
        """Report to the learner again, and install its snapshots."""
        if self._assignment is not None:
            self._assignment.resume()

    def _learner(self) -> str:
        if self._transport.manifest() is None:
            self.note("waiting for a member that knows the run: a learner is followed within one")
        while (manifest := self._transport.manifest()) is None:
            if self._cancelled():
                raise Interrupted("stopped before the run was known")
            time.sleep(LOOK_EVERY_S)
        return self._config.follow.learner or manifest.founder

    def _record(self, report: BatchReport) -> None:
        self._batches += 1
        self._tokens += report.num_tokens
        follower = self.assignment.follower
        snapshots = follower.snapshots
        self._runtime.record(
            RoundEvent(
                round=self._batches,
                reward=report.reward,
                groups=follower.groups.ledger.snapshot(),
                tokens_generated=self._tokens,
                tokens_per_s=report.num_tokens / report.seconds,
                figures=finite(report.figures),
                timings={"generate": report.seconds},
                following=FollowingFigures(
                    version=snapshots.version,
                    announced=snapshots.announced,
                    installed=snapshots.num_installed,
                    refused=snapshots.num_refused,
                    paused_s=self.assignment.waited_s,
                ),
            )
        )


class Assignment:
    """The work for one learner: its snapshots and orders, and the groups that are sampled for it."""

    def __init__(
        self,
        learner: str,
        runtime: RoleRuntime,
        transport: Transport,
        verifier: Verifier,
        engine: StreamingEngine,
        policy: Policy,
        cancelled: Callable[[], bool],
    ) -> None:
        """Fetch the learner's snapshots from now on; `resume` reports to it. Raises `ConfigError`, `SnapshotError`."""
        config = runtime.config
        self._learner = learner
        self._config = config
        self._runtime = runtime
        self._transport = transport
        self._policy = policy
        self._terms = terms_of(config, policy)
        self._started_at = time.time()
        self.waited_s = 0.0
        self._full_s = 0.0
        """Seconds blocked on a full outbox, since there was room last."""
        self._noted = _Noted()
        self.heartbeats: Heartbeats | None = None
        """None during a pause: the learner counts on others."""
        self._installer: _InstallThread | None = None
        self._reporting = contextlib.ExitStack()
        """Closed by a pause."""
        self._open = contextlib.ExitStack()
        plan, groups, room = self._plan(), self._groups(), most_bytes(policy.model)
        self._feed = self._open.enter_context(open_subscriber(transport, learner, config, max_bytes=room))
        runtime.count_also("snapshots", self._feed.counters)
        self.follower = Follower(
            plan,
            engine,
            verifier,
            SnapshotInstaller(engine, self._feed, partial(read_snapshot, policy)),
            groups,
            orders=self.orders,
            cancelled=cancelled,
            pause=self._wait_for_room,
        )
        self._open.callback(self.follower.stop)
        self._open.callback(self._reporting.close)
        runtime.note(f"fetching the learner's newest snapshot, at most {room / 1e6:.1f} MB; sampling begins with it")

    def orders(self) -> Orders | None:
        """The learner's last orders; None while it is away, or during a pause."""
        return self.heartbeats.orders if self.heartbeats is not None else None

    def step(self) -> BatchReport | None:
        """One batch of questions; None after a short wait. Raises `Interrupted`, `EngineError`."""
        follower = self.follower
        self._transport.drain()  # discard other workers' groups
        self._runtime.exchange.judge(self._feed.complaints())
        if self._installer is not None:
            self._installer.check()
        else:
            follower.snapshots.install()
        self._look_at_learner()
        if follower.lagging or not follower.wanted:
            follower.stop()
            follower.send()
            self.wait()
        elif follower.groups.held_up:
            follower.send()
            self._wait_for_room()
        else:
            return follower.run_batch()
        return None

    def wait(self) -> None:
        """Sample nothing for a moment."""
        time.sleep(LOOK_EVERY_S)
        self.waited_s += LOOK_EVERY_S

    def pause(self) -> None:
        """Stop sampling, and reporting to the learner."""
        self._reporting.close()
        self.heartbeats = self._installer = None
        self.follower.stop()

    def resume(self) -> None:
        """Report to the learner, and install its snapshots."""
        self.heartbeats = Heartbeats(self._transport, self._learner, self._report)
        self._reporting.callback(self.heartbeats.close)
        if self._config.follow.swap_in_flight:
            self._installer = _InstallThread(self.follower.snapshots, self.heartbeats)
            self._reporting.callback(self._installer.close)

    def close(self) -> None:
        """Stop following."""
        self._open.close()

    def _plan(self) -> SamplingPlan:
        generation, follow, peer_id = self._config.generation, self._config.follow, self._runtime.peer_id
        # Without a seed, every process asks different questions, also after a restart, and the learner knows whose they
        # are: another worker's groups under its own name would be worth nothing.
        seed, first = stream_seed(peer_id), int(self._started_at * QUESTIONS_PER_S)
        if self._config.seed is not None:
            seed, first = self._config.seed, 0
        return SamplingPlan(
            seed,
            follow.questions,
            generation.group_size,
            generation.sampling(),
            first,
            slots=min(generation.max_batch_sequences, follow.questions * generation.group_size),
            # A snapshot is installed between two calls unless it may enter them, and vLLM keeps all media of one.
            batches_a_call=BATCHES_A_CALL if follow.swap_in_flight and self._policy.media is None else 1,
        )

    def _groups(self) -> WorkerGroups:
        config, peer_id = self._config, self._runtime.peer_id
        names = sorted(custom_tool_tasks(config.tasks))
        if names and peer_id not in config.trusted:
            raise ConfigError(
                f"a worker's episodes must be shared, but tools of your own answer {', '.join(names)}: the run's "
                f"`trusted` must list {peer_id}"
            )
        policy_id = PolicyId(public_name(config.policy.model), self._policy.tokenizer_hash, 0)
        me = Member(peer_id, policy_id, config.generation.sampling())
        own = OwnGroups(me, self._runtime.exchange, token_ids=True)
        return WorkerGroups(own, self._policy.hides, self._has_room)

    def _look_at_learner(self) -> None:
        """Note when the learner stops answering, which other connected peers would hide, and when it answers again.

        And what it must share with the learner and does not, and why the learner's snapshots do not fit.
        """
        assert self.heartbeats is not None  # there are some outside of pauses
        noted, note, snapshots = self._noted, self._runtime.note, self.follower.snapshots
        away = self.heartbeats.away
        if away and not noted.away:
            version = snapshots.version
            kept = "without a snapshot so far" if version is None else f"keeping version {version}"
            note(f"the learner does not answer: waiting for it, {kept}", "warning")
        elif noted.away and not away:
            note("the learner answers again")
        orders = self.heartbeats.orders
        invited = orders is None or orders.invited
        if noted.invited and not invited:
            note(
                "the learner takes groups only of the workers that it lists, so that this one samples nothing: ask for "
                f"{self._runtime.peer_id} to be added to its learner.workers",
                "warning",
            )
        if orders is not None and orders.terms is not None and orders.terms != noted.terms:
            noted.terms = orders.terms
            for line in differences(self._terms, orders.terms):
                note(f"the learner cannot use what this worker samples: {line}", "warning")
        version, problem = snapshots.problem or (None, None)
        if problem is not None and problem != noted.problem:
            note(f"the learner's version {version} cannot be installed: {clean(problem)}", "warning")
        noted.away, noted.invited, noted.problem = away, invited, problem

    def _has_room(self) -> bool:
        """Whether one more group can be sent without another being lost for it."""
        if not self._transport.has_room():
            return False
        if self._full_s >= NOTE_AFTER_S:
            self._runtime.note("there is room for groups again: sampling goes on")
        self._full_s = 0.0
        return True

    def _wait_for_room(self) -> None:
        """Pause sampling for a moment while the outbox is full (backpressure); noted once each time that this lasts."""
        self.wait()
        before, self._full_s = self._full_s, self._full_s + LOOK_EVERY_S
        if before < NOTE_AFTER_S <= self._full_s:
            self._runtime.note(
                "the outbox is full of groups that nobody takes: not sampling until there is room", "warning"
            )

    def _report(self) -> Heartbeat:
        groups = self.follower.groups
        return Heartbeat(
            started_at=self._started_at,
            version=self.follower.snapshots.version,
            num_completions=groups.num_completions,
            reward=groups.reward,
            price=self._config.follow.price,
            terms=self._terms,
        )


class _Noted(Struct):
    """The learner's state in the last notes about it."""

    away: bool = False
    invited: bool = True
    terms: Terms | None = None
    problem: str | None = None
    """Why snapshots cannot be installed."""


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
