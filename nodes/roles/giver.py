"""`swarm give`: a member without a policy, whose groups are answers of an OpenAI-compatible server.

It trains nothing and loads no torch. What its groups did for others it learns from them
(`swarm/net/services/usage.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from nodes.roles.runtime import EndReason, Role, RoleNode, RoleRuntime
from swarm.config import NodeConfig
from swarm.errors import ConfigError, PeerUnreachable
from swarm.figures import finite
from swarm.files import replace_file
from swarm.groups.building import Member
from swarm.kinds import extra
from swarm.net.records.identity import Identity
from swarm.net.services.usage import GroupUsage, ask_usage
from swarm.policy.config import BEHIND_ENDPOINT, default_prompt
from swarm.protocols import Transport, Verifier
from swarm.telemetry.records import RoundEvent
from swarm.types import PolicyId
from swarm.types.questions import stream_seed

USAGE_FILE = "given.json"
ASK_EVERY_S = 10.0
ASK_TIMEOUT_S = 5.0
MAX_ASKED = 64
"""Peers asked at a time, of those that are connected."""
ENOUGH, GENEROSITY = 16, 2
"""Groups between two answers, and further ones for each that was used since: what nobody uses costs the endpoint's
time all the same."""
LAST_WORD_S = 6.0
"""At the end, for receivers to say once more what they used."""
LOOK_EVERY_S = 0.2
QUESTIONS_PER_S = 256
"""A process begins in its stream where no earlier one can be, as a worker's does."""
SEQUENCES_A_REQUEST = 2
NOT_LEARNING = ("bootstrap", "giver")


class Given(Struct, frozen=True):
    """What became of a giver's groups, as its peers say; `OUT/given.json`."""

    shared: int = 0
    peers: dict[str, GroupUsage] = {}
    """By peer id."""

    @property
    def used(self) -> int:
        """Uses by all peers; one group may be used by several."""
        return sum(each.used for each in self.peers.values())

    @property
    def num_users(self) -> int:
        """Peers that used any."""
        return sum(each.used > 0 for each in self.peers.values())


def read_given(out: Path) -> Given:
    """The file in a giver's directory; empty without one."""
    try:
        return msgspec.json.decode((out / USAGE_FILE).read_bytes(), type=Given)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Given()


class GiverNode(RoleNode):
    """One giver, on an open transport."""

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        transport: Transport,
        verifier: Verifier,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Raises `ConfigError` without an endpoint, for a missing key and in a learner's run, `PeerUnreachable` without
        a run."""
        if (manifest := transport.manifest()) is None:
            raise PeerUnreachable(
                "no member of the run has answered, and without one a giver does not know what to ask: check the "
                "address, or try again"
            )
        if manifest.terms is not None:
            raise ConfigError(
                f"run {manifest.run_id} has a learner, which takes samples of its own snapshots only: givers give to "
                "runs of peers"
            )
        runtime = RoleRuntime(config, identity, transport, verifier)
        super().__init__(runtime, cancelled)
        self._transport = transport
        self._rounds = 0
        self._noted: set[str] = set()
        self._problem = ""
        self._engine = extra("give.engine").EndpointEngine(
            config.endpoint,
            system_prompt=prompt
            if (prompt := config.policy.system_prompt) is not None
            else default_prompt(BEHIND_ENDPOINT),
            max_chars=config.network.max_completion_chars,
            cancelled=cancelled,
            note=lambda text, level: runtime.note(text, level),
        )
        generation = config.generation
        # Without a seed every process asks other questions, also after a restart.
        seed, first = stream_seed(identity.peer_id), int(time.time() * QUESTIONS_PER_S)
        if config.seed is not None:
            seed, first = config.seed, 0
        giving = extra("give.giving")
        self._giver = giving.Giver(
            giving.GivingPlan(
                num_questions=config.num_questions("cpu"),
                group_size=generation.group_size,
                slots=SEQUENCES_A_REQUEST * config.endpoint.requests_at_once * generation.group_size,
                first=first,
            ),
            Member(
                identity.peer_id,
                PolicyId(config.endpoint.public_model, "", 0),
                generation.sampling(),
                seed,
            ),
            self._engine,
            verifier,
            runtime.exchange,
            runtime.samples.keep,
        )
        self._open.callback(self._giver.stop)
        self._usage = UsageWatch(transport)
        self._open.callback(self._usage.close)
        runtime.count_also("given", self._usage.counters)

    @property
    def done(self) -> bool:
        """Whether all requested rounds are over."""
        return self._runtime.has_enough(self._rounds)

    def begin(self) -> None:
        """Write the start event. Raises `Interrupted`."""
        self._runtime.begin()
        self._pausing.wait()
        self._runtime.start_clock()

    def _work(self) -> None:
        """One round of questions, or a moment without anybody to give to or room to give more."""
        self._transport.drain()  # a giver learns from nobody
        self._runtime.exchange.judge()
        why = self._why_idle()
        if why and why not in self._noted:
            self._noted.add(why)
            self.note(f"not asking: {why}")
        if why:
            time.sleep(LOOK_EVERY_S)
            return
        self._runtime.samples.begin(self._rounds + 1)
        report = self._giver.run_round()
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
                tokens_generated=self._engine.num_tokens,
                figures=finite({**report.figures, "endpoint/requests_at_once": self._engine.requests_at_once}),
                tasks=report.tasks,
                timings={"generate": report.seconds},
                problem=report.problem,
            )
        )
        self._write_usage()

    def end(self, reason: EndReason) -> None:
        """Ask once more what became of the groups, and write the end event."""
        if self._num_shared and self._transport.status().connected:
            self._usage.ask(time.monotonic() + LAST_WORD_S)
        self._write_usage()
        self._runtime.end(self._rounds, reason, close=self.close)

    def on_pause(self) -> None:
        """Give up what is under way."""
        self._giver.stop()

    def while_paused(self) -> None:
        """Others' groups are of no use here."""
        self._transport.drain()

    def _why_idle(self) -> str:
        roles = {peer.peer_id: peer.role for peer in self._transport.peers()}
        if all(roles.get(peer_id) in NOT_LEARNING for peer_id in self._transport.status().connected):
            return "no member that learns is connected"
        if not self._transport.has_room():
            return "the outbox is full of groups that nobody takes"
        if self._usage.allowed is not None and self._num_shared >= self._usage.allowed:
            return "members use fewer groups than are given"
        if time.monotonic() < self._giver.waits_until:
            return "the swarm carries no more groups for now"
        return ""

    @property
    def _num_shared(self) -> int:
        return int(self._giver.ledger.snapshot()["shared"])

    def _write_usage(self) -> None:
        given = Given(self._num_shared, self._usage.known)
        replace_file(self._config.out / USAGE_FILE, msgspec.json.encode(given))


class UsageWatch:
    """Asks connected peers now and then, in a thread, what they did with this node's groups: that is the demand."""

    def __init__(self, transport: Transport) -> None:
        """Begins at once."""
        self.known: dict[str, GroupUsage] = {}
        """Last answers by peer id; replaced as a whole."""
        self.allowed: int | None = None
        """Groups that it makes sense to have given by the next answers; None while nobody says."""
        self._transport = transport
        self._stopped = threading.Event()
        self._asking = threading.Lock()
        self._num_shared = 0
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._thread.start()

    def counters(self) -> dict[str, int]:
        """Uses, and peers that used groups."""
        given = Given(peers=self.known)
        return {"used": given.used, "peers": given.num_users}

    def look(self, num_shared: int) -> None:
        """Note how many groups were given by now."""
        self._num_shared = num_shared

    def ask(self, deadline: float) -> None:
        """Ask every connected peer once, until a time of `time.monotonic`."""
        with self._asking:
            used, answered = Given(peers=self.known).used, False
            for peer_id in self._transport.status().connected[:MAX_ASKED]:
                left = min(ASK_TIMEOUT_S, deadline - time.monotonic())
                if left <= 0:
                    break
                try:
                    found = ask_usage(self._transport, peer_id, left)
                except PeerUnreachable:
                    continue  # gone, or of a version that does not say
                self.known = {**self.known, peer_id: found}
                answered = True
            more = Given(peers=self.known).used - used
            self.allowed = self._num_shared + ENOUGH + GENEROSITY * more if answered else None

    def close(self) -> None:
        """Ask no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(ASK_EVERY_S):
            self.ask(time.monotonic() + ASK_EVERY_S)


def _plan(config: NodeConfig) -> list[tuple[str, str]]:
    generation, endpoint = config.generation, config.endpoint
    return [
        ("endpoint", f"{endpoint.model} at {endpoint.url}"),
        ("per round", f"{config.num_questions('cpu')} questions x {generation.group_size} completions"),
        ("sampling", f"temperature {generation.temperature:g}, at most {generation.max_new_tokens} new tokens"),
    ]


GIVER = Role("giver", GiverNode, _plan, "asking nobody", invites="join", has_policy=False)
