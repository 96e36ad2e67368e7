"""One complete node without a model, in a separate process: exchange, regrading, pool, mix. `python -m
benchmarks.network.learning_node SPEC`, driven like `benchmarks.network.node`.

The round is `SapoNode`'s, with a policy that answers half correctly and an updater that only reports its input.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.arithmetic import GROUP_SIZE, TASKS, HalfRight, is_right
from benchmarks.common.children import commands, emit
from benchmarks.network.attacks import LABEL
from benchmarks.network.node import LISTEN, Spec
from swarm.environments.config import VerificationSettings
from swarm.environments.specs import to_specs
from swarm.environments.verification.pool import VerificationPool
from swarm.groups.building import Member
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.member import Profile
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits, SealedManifest, make_run_id, seal_manifest
from swarm.net.trust.exchange import Exchange
from swarm.reasons import Outcome, Reason
from swarm.received.pool import PoolSettings
from swarm.sapo.external import ExternalSettings
from swarm.sapo.mixing import MixSettings
from swarm.sapo.rollouts import RolloutPlan
from swarm.sapo.round import Parts, SapoNode, SapoSettings
from swarm.telemetry.ledger import Ledger
from swarm.types import (
    Commitment,
    GradedGroup,
    NetworkStatus,
    OfferedGroup,
    PolicyId,
    ReadTurn,
    ReceivedGroup,
    RolloutGroup,
    RunManifest,
    Sampling,
    UpdateReport,
)

GROUPS_PER_S = 1.0
"""What every learner shares."""
PATIENT_ROUND_S = 10.0
BRISK_ROUND_S = 1.0
LOOK_EVERY_S = 0.02
"""A fast learner polls for arrivals at this interval, so that delivery can be timed; a slow one once per round."""


class Witness:
    """`GroupExchange` that reports its groups."""

    def __init__(self, exchange: Exchange) -> None:
        """Watch this one."""
        self._exchange = exchange

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        """Share and report it."""
        at = time.time()
        shared = self._exchange.share(group)
        if shared is not None:
            emit("published", sequence=shared.sequence, at=at)
        return shared

    def share_all(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """Share and report them, sent or offered as the node measures; all that is offered is wanted here."""
        at = time.time()
        shared = self._exchange.share_all(groups)
        for group in shared:
            if group is not None:
                emit("published", sequence=group.sequence, at=at)
        return shared

    def took(self, num_groups: int, num_wanted: int) -> None:
        """Pass it on."""
        self._exchange.took(num_groups, num_wanted)

    def offers(self) -> list[OfferedGroup]:
        """Pass it on."""
        return self._exchange.offers()

    def commitments(self) -> list[Commitment]:
        """Pass it on."""
        return self._exchange.commitments()

    def banned(self) -> frozenset[str]:
        """Pass it on."""
        return self._exchange.banned()

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        """Pass it on."""
        self._exchange.pull(offered, patience_s)

    def receive(self) -> tuple[list[ReceivedGroup], dict[Reason, int]]:
        """Receive and report the groups."""
        groups, refused = self._exchange.receive()
        if groups:
            emit("got", at=time.time(), groups=[(each.peer_id, each.group.sequence) for each in groups])
        return groups, refused

    def wait(self, timeout_s: float) -> bool:
        """Pass it on."""
        return self._exchange.wait(timeout_s)

    def account(self, peer_id: str) -> str:
        """Pass it on."""
        return self._exchange.account(peer_id)

    def report(self, peer_id: str, outcome: Outcome, verify_s: float = 0.0) -> None:
        """Pass it on."""
        self._exchange.report(peer_id, outcome, verify_s)

    def established(self) -> frozenset[str]:
        """Pass it on."""
        return self._exchange.established()

    def status(self) -> NetworkStatus:
        """Pass it on."""
        return self._exchange.status()


class Recorder:
    """`Updater` that only reports its external groups."""

    version = 0
    max_chars = 10**9

    def fits(self, group: GradedGroup) -> bool:
        """There is room for anything."""
        return True

    def read(self, groups: Sequence[GradedGroup], wanted: object = None) -> list[list[list[ReadTurn]]]:
        """Without a policy, nothing is improbable."""
        return [[[] for _ in graded.rewards] for graded in groups]

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """Nothing is trained."""
        return [0.0] * len(rewards)

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """Report the groups' authors, the names of hostile ones, and whether rewards are correct."""
        if external:
            emit("trained", groups=[_seen(graded) for graded in external])
        return UpdateReport()


def _seen(graded: GradedGroup) -> tuple[str, int, str, bool]:
    group = graded.group
    truth = tuple(float(is_right(graded.prompt, completion.text)) for completion in group.completions)
    label = group.policy.model.removeprefix(LABEL) if group.policy.model.startswith(LABEL) else ""
    return group.peer_id, group.sequence, label, graded.rewards == truth


class Learner:
    """Runs due rounds; between rounds a fast learner polls for arrivals."""

    def __init__(self, spec: Spec) -> None:
        """Import everything and start the verification workers; no network yet."""
        import swarm.net.hivemind.daemon  # noqa: F401  this import is slow and must not be part of a figure

        self._identity = Identity.load_or_create(Path(spec.folder) / f"{spec.name}.key")
        self._founder = spec.founder
        self._round_s = PATIENT_ROUND_S if spec.patient else BRISK_ROUND_S
        self._looks = not spec.patient
        self._verifier = VerificationPool(TASKS, VerificationSettings())
        self._verifier.wait_until_ready()
        self._engine = HalfRight(0)
        self._due = float("inf")
        self._transport: HivemindTransport | None = None
        self._exchange: Exchange | None = None
        self._node: SapoNode | None = None

    def start(self, bootstrap: list[str]) -> None:
        """Join the swarm with default settings."""
        settings = NetworkSettings(bootstrap=tuple(bootstrap), listen=(LISTEN,), nat_port_map=False, retry_s=0.5)
        limits = Limits(settings.max_record_bytes, settings.max_completion_chars)
        sealed = _manifest(self._identity, limits) if self._founder else None
        self._transport = HivemindTransport(settings, self._identity, sealed, Profile(model="none", version="bench"))
        self._transport.start()
        self._exchange = Exchange(self._transport, self._identity, limits, settings.safety)
        pool, verification = PoolSettings(), VerificationSettings()
        sapo = SapoSettings(
            rollouts=RolloutPlan(num_questions=round(GROUPS_PER_S * self._round_s), group_size=GROUP_SIZE),
            external=ExternalSettings(
                # Everything in the pool would be trained on.
                mix=MixSettings(local=1_000, external=pool.max_groups),
                pool=pool,
                max_group_size=GROUP_SIZE,
                max_pending_per_peer=max(1, int(verification.queue_groups * pool.max_share_per_peer)),
            ),
        )
        peer_id = self._identity.peer_id
        me = Member(peer_id, PolicyId("none", "", 0), Sampling(), seed=sum(peer_id.encode()))
        exchange = Witness(self._exchange)
        parts = Parts(engine=self._engine, verifier=self._verifier, updater=Recorder(), exchange=exchange)
        self._node = SapoNode(sapo, me, parts)
        emit("ready", at=time.time(), peer_id=self._identity.peer_id, addresses=list(self._transport.multiaddrs()))

    def publish(self, size_bytes: int, every_s: float) -> None:
        """Start rounds with groups of about this size, one every `every_s` on average."""
        assert every_s == 1 / GROUPS_PER_S
        self._engine.num_chars = size_bytes // (GROUP_SIZE - 1)
        self._due = time.monotonic() + self._round_s * (sum(self._identity.peer_id.encode()) % 97) / 97

    def quiet(self) -> None:
        """Stop rounds, but keep receiving."""
        self._due = float("inf")
        self._looks = True

    def step(self) -> None:
        """Run what is due and process arrivals."""
        if self._node is None:
            return
        if time.monotonic() >= self._due:
            self._due = max(self._due + self._round_s, time.monotonic())
            self._node.run_round()
        elif self._looks:
            self._node.external.receive()

    def status(self) -> None:
        """Report the status."""
        connected = self._transport.status().connected if self._transport else ()
        run_id = self._transport.status().run_id if self._transport else None
        book = self._exchange.book if self._exchange else None
        counts = self._node.ledger.snapshot() if self._node else Ledger().snapshot()
        emit(
            "status",
            connected=len(connected),
            run_id=run_id,
            counters=self._transport.counters() if self._transport else {},
            verifier=self._verifier.counters(),
            received=counts["received"],
            refused=counts["dropped"],
            quarantined=len(book.quarantined()) if book else 0,
            accounts=len(book.stats()) if book else 0,
            pending=self._node.external.num_pending if self._node else 0,
            unaccounted=self._node.ledger.unaccounted(
                self._node.external.pool.num_unused(), self._node.external.num_pending
            )
            if self._node
            else 0,
        )

    def remainder(self) -> None:
        """Report the pool's content, which the next round would train on."""
        emit("remainder", groups=[_seen(each.graded) for each in (self._node.external.pool if self._node else ())])

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.close()
        self._verifier.close()


def _manifest(founder: Identity, limits: Limits) -> SealedManifest:
    run_id = make_run_id("arithmetic", founder.peer_id)
    manifest = RunManifest(
        run_id,
        founder.peer_id,
        time.time(),
        to_specs(TASKS),
        GROUP_SIZE,
        1,
        1,
        limits.max_record_bytes,
        limits.max_completion_chars,
    )
    return SealedManifest(seal_manifest(founder, manifest), manifest)


def main() -> None:
    """Execute commands until told to quit, or until the driver exits."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    learner = Learner(Spec(**json.loads(sys.argv[1])))
    orders = commands()
    emit("warm")
    while True:
        while not orders.empty():
            order = orders.get()
            match order.pop("do"):
                case "start":
                    learner.start(**order)  # type: ignore[arg-type]
                case "publish":
                    learner.publish(**order)  # type: ignore[arg-type]
                case "quiet":
                    learner.quiet()
                case "status":
                    learner.status()
                case "remainder":
                    learner.remainder()
                case "quit":
                    learner.close()
                    return
        learner.step()
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    main()
