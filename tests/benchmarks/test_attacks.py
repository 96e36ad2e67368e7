"""What the hostile peer of the network benchmark sends, against a node whose network is a room in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.common.arithmetic import GROUP_SIZE, TASKS, HalfRight, is_right, solve
from benchmarks.network.attacks import KINDS, LABEL, LYING, Attacker, Attacks
from swarm.environments.mixture import TaskMixture
from swarm.environments.verification.inline import InlineVerifier
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits, SealedManifest, make_run_id, seal_manifest
from swarm.net.trust.accounts import SafetySettings
from swarm.net.trust.exchange import Exchange
from swarm.received.pool import PoolSettings
from swarm.sapo.mixing import MixSettings
from swarm.sapo.round import SapoNode
from swarm.types import GradedGroup, RunManifest, Sampling
from tests.net.records import drained
from tests.sapo.nodes import make_node
from tests.sapo.pupil import Pupil

EACH = 30
"""Records of each kind: every variant at least twice."""


class Room:
    """An honest node, another that is attacked, and a stranger."""

    def __init__(self, mixture: TaskMixture, safety: SafetySettings) -> None:
        self._hub = MemoryHub()
        founder = Identity.generate()
        run_id = make_run_id("arithmetic", founder.peer_id)
        limits = Limits()
        bytes_, chars = limits.max_record_bytes, limits.max_completion_chars
        manifest = RunManifest(run_id, founder.peer_id, 0.0, (), GROUP_SIZE, 1, 1, bytes_, chars)
        self._run = SealedManifest(seal_manifest(founder, manifest), manifest)
        self.pupil = Pupil()
        self.honest = self._node(Pupil(), seed=1, safety=safety)
        self.victim = self._node(self.pupil, seed=2, safety=safety)
        self.attacker = Attacker(Identity.generate())
        self.gossip = self._transport(self.attacker.identity)
        self.attacks = Attacks(run_id, limits, mixture)

    def _transport(self, identity: Identity) -> MemoryTransport:
        transport = MemoryTransport(self._hub, identity.peer_id, self._run, inbox_bytes=2**30)
        transport.start()
        return transport

    def _node(self, pupil: Pupil, seed: int, safety: SafetySettings) -> SapoNode:
        identity = Identity.generate()
        return make_node(
            identity.peer_id,
            seed=seed,
            questions=4,
            group_size=GROUP_SIZE,
            model="half right",
            max_pending_per_peer=1_000,
            mix=MixSettings(local=4, external=1_000),
            engine=HalfRight(100),
            verifier=InlineVerifier(TASKS),
            updater=pupil,
            exchange=Exchange(self._transport(identity), identity, Limits(), safety),
            pool=PoolSettings(max_groups=1_000),
        )

    def attack(self, kinds: Sequence[str], each: int) -> None:
        """The honest node shares; the stranger hears it, and publishes."""
        self.honest.run_round()
        for record in drained(self.gossip):
            self.attacks.hear(record)
        for _ in range(each):
            for kind in kinds:
                self.gossip.publish(self.attacks.make(kind, self.attacker))
        self.victim.run_round()


@pytest.fixture(scope="module")
def mixture() -> TaskMixture:
    return TaskMixture(TASKS)


def _labels(groups: Sequence[GradedGroup]) -> Counter[str]:
    return Counter(each.group.policy.model for each in groups)


def test_nothing_that_must_not_comes_to_an_update_even_from_one_who_is_never_banned(mixture: TaskMixture) -> None:
    room = Room(mixture, SafetySettings(quarantine_at=1e9, verify_s_per_min=1e9))
    room.attack(KINDS, EACH)
    variants = Counter(name.partition("/")[0] for name in room.attacks.made)
    assert variants.keys() == set(KINDS) and min(room.attacks.made.values()) >= 2
    learned = _labels(room.pupil.external)
    assert learned.keys() == {"half right", LABEL + LYING}
    assert learned["half right"] >= 3, "honest groups are learned from meanwhile"
    # The kind `replayed` sends lies twice under one sequence number.
    assert max(Counter((each.group.peer_id, each.group.sequence) for each in room.pupil.external).values()) == 1
    dropped = room.victim.ledger.snapshot()["dropped"]
    for reason in ("bad_signature", "wrong_peer", "replayed", "duplicate", "oversized", "malformed", "limits"):
        assert dropped[reason] > 0
    for reason in ("zero_advantage", "question_mismatch", "options_differ", "unknown_task"):
        assert dropped[reason] > 0
    assert room.victim.unaccounted() == 0


def test_false_rewards_are_replaced_by_true_ones(mixture: TaskMixture) -> None:
    room = Room(mixture, SafetySettings())
    room.attack([LYING], 5)
    lies = [each for each in room.pupil.external if each.group.policy.model == LABEL + LYING]
    assert len(lies) == 5
    for each in lies:
        truth = tuple(float(is_right(each.prompt, completion.text)) for completion in each.group.completions)
        assert each.rewards == truth != each.group.rewards


def test_one_that_attacks_is_soon_not_listened_to(mixture: TaskMixture) -> None:
    room = Room(mixture, SafetySettings())
    room.attack(KINDS, EACH)
    assert room.victim.ledger.snapshot()["dropped"]["quarantined"] > 0
    before = _labels(room.pupil.external)
    room.attack([LYING], 3)
    gained = _labels(room.pupil.external) - before
    assert gained.keys() == {"half right"}, "only the honest one still is"


def test_the_benchmark_tells_right_from_wrong_as_the_library_does(mixture: TaskMixture) -> None:
    for index in range(100):
        question = mixture.question(5, index)
        if solve(question.prompt) is not None:
            texts = [completion.text for completion in HalfRight(10).generate([question.prompt], 4, Sampling(), 0)[0]]
            grade = mixture.grade(question.ref, texts)
            assert grade.rewards == tuple(float(is_right(question.prompt, text)) for text in texts) == (1, 1, 0, 0)
