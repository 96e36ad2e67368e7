"""`swarm give`: a member without a policy, whose groups are answers of an OpenAI-compatible server.

It trains nothing and loads no torch. What its groups did for others it learns from them
(`swarm/net/services/usage.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from nodes.roles.role import RoleNode
from nodes.roles.runtime import EndReason, NodeParts
from swarm.config import NodeConfig, Values
from swarm.errors import ConfigError, EndpointError
from swarm.extras.give.demand import TaskDemand
from swarm.extras.give.engine import EndpointEngine
from swarm.extras.give.giving import GivenRound, Giver, GivingPlan
from swarm.extras.give.usage import Given, UsageWatch, write_given
from swarm.figures import finite
from swarm.groups.building import Member
from swarm.groups.episodes import Stream
from swarm.policy.config import prompt_of
from swarm.telemetry.records import RoundEvent
from swarm.types import PolicyId, RunManifest
from swarm.types.questions import stream_seed

LAST_WORD_S, LAST_WORD_INTERRUPTED_S = 6.0, 1.0
"""At the end, for receivers to say once more what they used; a person who stops it does not wait for that."""
MINUTE_S = 60.0
PATIENCE_S = 2.0
"""With an endpoint that is away, within one step."""
LOOK_EVERY_S = 0.2
LONG_S = 12.0
"""Shorter waits keep a giver at the rate of what is used."""
QUESTIONS_PER_S = 256
"""A process begins in its stream where no earlier one can be, as a worker's does."""
SEQUENCES_A_REQUEST = 2
MOST_COMPLETIONS = 16
"""Most completions of one question in a run with larger groups: members take smaller ones, and an endpoint may cost
money."""
NOT_LEARNING = ("bootstrap", "giver")


def questions_a_round(config: NodeConfig, device: str = "cpu") -> int:
    """Questions after which it looks again whether its groups are used, on this type of torch device.

    The run's mix does not count: a founder could make a round endless, and an endpoint may cost money.
    """
    return config.generation.questions_per_round or config.generation.default_questions(device)


class GiverNode(RoleNode):
    """One giver, on an open transport."""

    role = "giver"
    alone = "asking nobody"
    awaits_run = True
    has_policy = False
    quiet_s: ClassVar[float] = LONG_S
    """Without a question, before it is said why."""
    _engine: EndpointEngine | None = None

    @classmethod
    def model(cls, config: NodeConfig) -> str:
        """See `RoleNode`."""
        return config.endpoint.public_model

    @classmethod
    def plan(cls, config: NodeConfig) -> list[tuple[str, str]]:
        """See `RoleNode`."""
        return [("endpoint", f"{config.endpoint.model} at {config.endpoint.url}"), *cls._plan_of_rounds(config)]

    @classmethod
    def _plan_of_rounds(cls, config: NodeConfig) -> list[tuple[str, str]]:
        generation, endpoint = config.generation, config.endpoint
        return [
            *([("groups", f"ends after {endpoint.groups}")] if endpoint.groups else []),
            ("per round", f"{questions_a_round(config)} questions x {generation.group_size} completions"),
            (
                "sampling",
                f"temperature {generation.temperature:g}, at most {generation.max_new_tokens} new tokens (this node's "
                "generation.temperature and max_new_tokens: a run sets neither)",
            ),
            ("system prompt", prompt_of(config.policy) or "none (policy.system_prompt; a run sets none)"),
        ]

    @classmethod
    def values_of(cls, manifest: RunManifest) -> Values:
        """No more completions of a question than `MOST_COMPLETIONS`, unless this node's own configuration says so."""
        return {"generation": {"group_size": min(manifest.group_size, MOST_COMPLETIONS)}}

    @classmethod
    def check(cls, config: NodeConfig, manifest: RunManifest, peer_id: str) -> None:
        """Raises `ConfigError` for a run with a learner."""
        if manifest.terms is not None:
            raise ConfigError(
                f"run {manifest.run_id} has a learner, which takes samples of its snapshots only: givers give to "
                "runs of peers"
            )

    def __init__(self, parts: NodeParts) -> None:
        """Raises `ConfigError` without an endpoint or for a missing key."""
        super().__init__(parts)
        config, identity, runtime = parts.config, parts.identity, self._runtime
        self._rounds = 0
        self._noted: set[str] = set()
        self._idle_since: float | None = None
        self._problem = ""
        # Without a seed every process asks other questions, also after a restart.
        seed, first = stream_seed(identity.peer_id), int(time.time() * QUESTIONS_PER_S)
        if config.seed is not None:
            seed, first = config.seed, 0
        self._demand = self._make_demand()
        stream = self._make_stream()
        self._giver = Giver(
            self._make_plan(first),
            Member(identity.peer_id, PolicyId(self.model(config), "", 0), config.generation.sampling(), seed),
            stream,
            parts.verifier,
            runtime.exchange,
            runtime.samples.keep,
            self._demand,
        )
        self._open.callback(self._giver.stop)
        self._usage = UsageWatch(parts.transport, self._demand)
        self._given: deque[tuple[float, int]] = deque()
        """Times of the last minute's rounds, and the groups shared before each."""
        self._open.callback(self._usage.close)
        runtime.count_also("given", self._usage.counters)

    def _make_demand(self) -> TaskDemand:
        return TaskDemand()

    def _make_plan(self, first: int) -> GivingPlan:
        config = self._config
        return GivingPlan(
            num_questions=questions_a_round(config),
            group_size=config.generation.group_size,
            slots=SEQUENCES_A_REQUEST * config.endpoint.requests_at_once * config.generation.group_size,
            first=first,
            tasks=tuple(task.name for task in config.tasks),
            groups=config.endpoint.groups,
        )

    def _make_stream(self) -> Stream:
        self._engine = self._make_engine(PATIENCE_S, self._cancelled, lambda text, level: self.note(text, level))
        return self._engine.stream

    def _make_engine(
        self, patience_s: float | None, cancelled: Callable[[], bool], note: Callable[[str, str], None]
    ) -> EndpointEngine:
        config = self._config
        return EndpointEngine(
            config.endpoint,
            system_prompt=prompt_of(config.policy),
            max_chars=config.network.max_completion_chars,
            patience_s=patience_s,
            cancelled=cancelled,
            note=note,
        )

    @property
    def done(self) -> bool:
        """Whether all requested rounds are over, or all groups are given."""
        return self._runtime.has_enough(self._rounds) or self._giver.has_enough

    def begin(self) -> None:
        """Write the start event. Raises `Interrupted`."""
        self._write_start()
        self._pausing.wait()
        self._runtime.start_clock()

    def _work(self) -> None:
        """One round of questions, or a moment without anybody to give to or room to give more."""
        self._transport.drain()  # a giver learns from nobody
        self._runtime.exchange.judge()
        if why := self._why_idle():
            self._idle_since = self._idle_since or time.monotonic()
            if why not in self._noted and time.monotonic() - self._idle_since > self.quiet_s:
                self._noted.add(why)
                self.note(f"not asking: {why}")
            time.sleep(LOOK_EVERY_S)
            return
        self._idle_since = None
        self._given.append((time.monotonic(), self._num_shared))
        self._runtime.samples.begin(self._rounds + 1)
        try:
            report = self._play()
        except EndpointError as error:
            if not error.busy:
                raise
            return  # it is away, as was said: pauses and stops are obeyed between two attempts
        self._rounds += 1
        self._usage.look(self._num_shared)
        if report.problem and not self._problem:
            text = f"no question of round {self._rounds} has a group; {report.problem}"
            self.note(text, "warning", alert="no-groups")
        self._problem = report.problem
        self._runtime.record(
            RoundEvent(
                round=self._rounds,
                reward=report.reward,
                groups=self._giver.ledger.snapshot(),
                tokens_generated=self._num_tokens,
                figures=finite({**report.figures, **self._pace()}),
                tasks=report.tasks,
                timings={"generate": report.seconds},
                problem=report.problem,
            )
        )
        self._write_usage()

    def end(self, reason: EndReason) -> None:
        """Ask once more what became of the groups, and write the end event."""
        if self._num_shared and self._transport.status().connected:
            self._usage.last_word(LAST_WORD_INTERRUPTED_S if reason == "interrupted" else LAST_WORD_S)
        self._write_usage()
        self._runtime.end(self._rounds, reason, close=self.close)

    def on_pause(self) -> None:
        """Give up what is under way."""
        self._giver.stop()

    def while_paused(self) -> None:
        """Others' groups are of no use here."""
        self._transport.drain()

    def _play(self) -> GivenRound:
        """One round of questions."""
        return self._giver.run_round()

    def _pace(self) -> dict[str, float]:
        return {"endpoint/requests_at_once": self._engine.requests_at_once} if self._engine else {}

    def _why_idle(self) -> str:
        roles = {peer.peer_id: peer.role for peer in self._transport.peers()}
        if all(roles.get(peer_id) in NOT_LEARNING for peer_id in self._transport.status().connected):
            return "no member that learns is connected"
        if not self._transport.has_room():
            return "the outbox is full of groups that nobody takes"
        if self._num_shared >= self._usage.allowed:
            return "members have as many groups as they use; it goes on at their rate"
        if self._is_over_rate():
            return f"the rate of endpoint.max_groups_per_min is reached ({self._config.endpoint.max_groups_per_min:g})"
        if time.monotonic() < self._giver.waits_until:
            return self._giver.wait_reason
        return ""

    def _is_over_rate(self) -> bool:
        """Whether the last minute's groups are as many as a minute may have."""
        most = self._config.endpoint.max_groups_per_min
        while self._given and time.monotonic() - self._given[0][0] >= MINUTE_S:
            self._given.popleft()
        return most is not None and bool(self._given) and self._num_shared - self._given[0][1] >= most

    @property
    def _num_shared(self) -> int:
        return int(self._giver.ledger.snapshot()["shared"])

    @property
    def _num_tokens(self) -> int:
        return self._engine.num_tokens if self._engine else 0

    def _write_usage(self) -> None:
        write_given(self._config.out, Given(self._num_shared, self._usage.known))
