"""The round with doubles for what is slow, and the real pool, mix, ledger and memory transport."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import Future

import numpy as np
import pytest
from msgspec.structs import replace

from swarm.errors import NonFiniteUpdates
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records import envelope
from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest, make_run_id, seal_manifest
from swarm.net.trust.exchange import Exchange
from swarm.reasons import Fate, Reason
from swarm.received.pool import PoolSettings
from swarm.sapo.mixing import Candidate, Decision, History, MixPolicy, MixSettings
from swarm.sapo.round import SapoNode, ShareSettings
from swarm.sapo.watch import WatchSettings
from swarm.sapo.worth import WorthEstimator
from swarm.types import (
    Answers,
    Completion,
    Grade,
    GradedGroup,
    Question,
    ReadTurn,
    Rejection,
    RolloutGroup,
    RunManifest,
    Sampling,
    TaskRef,
    UpdateReport,
)
from tests.example_groups import reference
from tests.sapo.nodes import make_node
from tests.sapo.pupil import as_read

GROUP_SIZE = 4


class FakeVerifier:
    """Rewards the text `good`. Questions whose index is in `refused` cannot be graded."""

    def __init__(self, refused: frozenset[int] = frozenset()) -> None:
        self.refused = refused
        self.done: list[tuple[str, Grade | Rejection]] = []

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        return [Question(reference(1000 * seed + index), f"question {index}") for index in range(start, start + count)]

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[str]]]) -> list[Grade | Rejection]:
        return [
            Rejection(Reason.VERIFIER_TIMEOUT)
            if ref.index in self.refused
            else Grade("prompt", tuple(float(text.startswith("good")) for text in texts))
            for ref, texts in jobs
        ]

    def begin_grading(self, ref: TaskRef, texts: Sequence[str]) -> Future[Grade | Rejection]:
        verdict: Future[Grade | Rejection] = Future()
        verdict.set_result(self.grade([(ref, texts)])[0])
        return verdict

    def submit(self, key: str, ref: TaskRef, texts: Sequence[str], sender: str = "") -> None:
        self.done.append((key, self.grade([(ref, texts)])[0]))

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        done, self.done = self.done, []
        return done

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


class FakeEngine:
    """Every second question gets one good completion, the others none."""

    def __init__(self, good: str = "good", bad: str = "bad") -> None:
        self.good = good
        self.bad = bad
        self.seeds: list[int] = []

    def generate(self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        return [answers for _, answers in self.stream(prompts, num_completions, sampling, seed)]

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
    ) -> Generator[tuple[int, Answers]]:
        self.seeds.append(seed)
        bad = Completion(self.bad, "stop", (5,), (-1.0,))
        for k in range(len(prompts)):
            good = Completion(self.good, "stop", (4,), (-1.0,))
            yield k, (good if k % 2 else bad, *[bad] * (num_completions - 1))


class FakeUpdater:
    max_chars = 10_000

    def __init__(self, fits: bool = True) -> None:
        self.version = 0
        self.batches: list[tuple[list[GradedGroup], list[GradedGroup]]] = []
        self._fits = fits

    def fits(self, group: GradedGroup) -> bool:
        return self._fits

    def read(self, groups: Sequence[GradedGroup], wanted: object = None) -> list[list[list[ReadTurn]]]:
        return as_read([[[[-1.0]] for _ in graded.rewards] for graded in groups])

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return [reward - sum(rewards) / len(rewards) for reward in rewards]

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        self.version += 1
        self.batches.append((list(local), list(external)))
        return UpdateReport()


class Swarm:
    """Nodes on one hub."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.founder = Identity.generate()
        run_id = make_run_id("test", self.founder.peer_id)
        manifest = RunManifest(run_id, self.founder.peer_id, 0.0, (), GROUP_SIZE, 2, 2, 10**6, 10**4)
        self.run = SealedManifest(seal_manifest(self.founder, manifest), manifest)

    def node(self, seed: int, **parts: object) -> SapoNode:
        identity = Identity.generate()
        # Rounds take no time here: by the clock, a few nodes make as many groups as a large swarm.
        clock = parts.get("clock", time.time)
        transport = MemoryTransport(self.hub, identity.peer_id, self.run, offers_per_s=1e9, clock=clock)  # type: ignore[arg-type]
        transport.start()
        values = {
            "questions": 6,
            "group_size": GROUP_SIZE,
            "mix": MixSettings(local=2, external=2),
            "engine": FakeEngine(),
            "verifier": FakeVerifier(),
            "updater": FakeUpdater(),
            "exchange": Exchange(transport, identity, clock=clock),
        }
        return make_node(identity.peer_id, seed=seed, **{**values, **parts})  # type: ignore[arg-type]


def pooled(node: SapoNode) -> list[GradedGroup]:
    return [each.graded for each in node.external.pool]


def _balanced(node: SapoNode) -> bool:
    return node.unaccounted() == 0


def test_a_round_shares_what_has_signal_and_learns_from_both_sides() -> None:
    swarm = Swarm()
    updater = FakeUpdater()
    one, two = swarm.node(1), swarm.node(2, updater=updater)
    one.run_round()
    report = two.run_round()
    assert one.ledger.snapshot()["shared"] == 3, "half of six questions had a good answer"
    assert (len(report.mix.local), len(report.mix.external)) == (2, 2)
    local, external = updater.batches[0]
    assert {group.group.peer_id for group in external} == {one.peer_id}
    assert all(group.rewards == (1.0, 0.0, 0.0, 0.0) for group in [*local, *external])
    assert all(not c.token_ids for group in external for c in group.group.completions), "text is the medium"
    counts = two.ledger.snapshot()
    assert (counts["received"], counts["used_external"], counts["used_local"]) == (3, 2, 2)
    assert counts["local"] == {"zero_advantage": 3, "not_sampled": 1}
    assert report.reward == 3 / 24
    assert report.figures["frac_reward_zero_std"] == 0.5
    assert _balanced(one) and _balanced(two)


def test_a_round_without_graded_answers_has_no_reward() -> None:
    nobody = FakeVerifier(refused=frozenset(range(1000, 1010)))
    report = Swarm().node(1, verifier=nobody).run_round()
    assert report.reward is None, "not 0: nothing is known"
    assert report.tasks == {}


def test_a_measured_round_knows_its_groups_and_others_are_left_alone() -> None:
    class Sketcher:
        refusal = None
        seconds = 0.0
        begun = 0

        def begin_sketches(self) -> None:
            self.begun += 1

        def take_sketches(self) -> np.ndarray:
            return np.ones((4, 3), np.float32)

    swarm = Swarm()
    sketcher = Sketcher()
    estimator = WorthEstimator(sketcher, every_rounds=2, num_groups=4)
    one, two = swarm.node(1), swarm.node(2, worth=estimator)
    for _ in range(3):
        one.run_round()
        report = two.run_round()
    assert sketcher.begun == 2
    assert report.worth is not None and report.worth.rounds == 2
    assert [set(measured.senders) for measured in estimator.rounds] == [{one.peer_id}] * 2
    assert estimator.rounds[0].sums.alone_inverse == 1 / 3, "three of six own questions had a good answer"
    assert "worth/cost_s" in report.figures
    assert one.run_round().worth is None


def test_rewards_of_others_are_never_believed() -> None:
    class Liar(FakeVerifier):
        def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[str]]]) -> list[Grade | Rejection]:
            return [Grade("prompt", (1.0, *[0.0] * (len(texts) - 1))) for _, texts in jobs]

    swarm = Swarm()
    updater = FakeUpdater()
    liar = swarm.node(1, verifier=Liar(), engine=FakeEngine(good="worthless"))
    honest = swarm.node(2, updater=updater)
    liar.run_round()
    report = honest.run_round()
    assert report.mix.external == () and report.mix.external_shortfall == 2
    assert honest.ledger.snapshot()["dropped"] == {"zero_advantage": 6}
    assert _balanced(honest)


def test_alone_a_node_trains_on_its_own_groups_and_reports_the_shortfall() -> None:
    report = Swarm().node(1).run_round()
    assert (len(report.mix.local), report.mix.external_shortfall, report.mix.filled) == (2, 2, 0)
    filled = Swarm().node(1, mix=MixSettings(local=2, external=2, fill="local")).run_round()
    assert (len(filled.mix.local), filled.mix.filled) == (3, 1)


def test_a_new_author_is_learned_from_little_by_little() -> None:
    swarm = Swarm()
    sender, node = swarm.node(1), swarm.node(2)
    credited = []
    for _ in range(20):
        sender.run_round()
        mixed = node.run_round().mix
        credited += [group.factors[0][0] for group in mixed.external]
        assert all(len(group.factors) == GROUP_SIZE for group in mixed.external)
        assert all(not group.factors for group in mixed.local)
    assert credited[0] == pytest.approx(2 / 4, rel=1e-3) and credited == sorted(credited) and credited[-1] == 1


def test_refusals_are_counted_by_reason() -> None:
    swarm = Swarm()
    sender = swarm.node(1)
    picky = swarm.node(2, verifier=FakeVerifier(refused=frozenset({1001})))
    small = swarm.node(3, updater=FakeUpdater(fits=False))
    sender.run_round()
    picky.external.receive()
    small.external.receive()
    assert picky.ledger.snapshot()["dropped"] == {"verifier_timeout": 1}
    assert small.ledger.snapshot()["dropped"] == {"too_long": 3}
    assert _balanced(picky) and _balanced(small)


class Numbered(FakeEngine):
    """No text twice: copies count for nothing."""

    num_made = 0

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
    ) -> Generator[tuple[int, Answers]]:
        for index in range(len(prompts)):
            Numbered.num_made += 1
            good = Completion(f"{self.good} {Numbered.num_made}", "stop", (4,), (-1.0,))
            bad = (Completion(f"bad {Numbered.num_made} {k}", "stop", (5,), (-1.0,)) for k in range(1, num_completions))
            yield index, (good, *bad)


def test_implausible_groups_do_not_end_up_as_all_that_novelty_has_to_choose_from() -> None:
    class Fussy(FakeUpdater):
        def read(self, groups: Sequence[GradedGroup], wanted: object = None) -> list[list[list[ReadTurn]]]:
            return as_read(
                [[[[-50.0 if "odd" in c.text else -1.0]] for c in each.group.completions] for each in groups]
            )

    swarm = Swarm()
    senders = [swarm.node(seed, engine=Numbered("good odd" if seed == 4 else "good")) for seed in range(1, 5)]
    node = swarm.node(5, updater=Fussy(), engine=Numbered(), mix=MixSettings(local=2, external=4, policy="novelty"))
    external = []
    for _ in range(30):
        for sender in senders:
            sender.run_round()
        external.append(len(node.run_round().mix.external))
    assert sum(external[-10:]) >= 38, "nearly 4 in each"
    assert node.ledger.snapshot()["dropped"]["improbable"] > 0
    assert _balanced(node)


class NothingOdd(MixPolicy):
    """Weighs what others claim like anything else, and never draws an odd text."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        odd = [each.is_graded and "odd" in each.graded.group.completions[0].text for each in candidates]
        return Decision(2, 4, [float(not each) for each in odd])


def test_groups_that_a_policy_never_draws_keep_no_others_from_being_graded() -> None:
    swarm = Swarm()
    senders = [swarm.node(seed, engine=Numbered("good odd" if seed == 4 else "good")) for seed in range(1, 5)]
    mix = MixSettings(local=2, external=4, policy=f"{__name__}:NothingOdd")
    node = swarm.node(5, engine=Numbered(), mix=mix)
    external = []
    for _ in range(30):
        for sender in senders:
            sender.run_round()
        external.append(len(node.run_round().mix.external))
    assert sum(external[-10:]) >= 30
    assert _balanced(node)


def test_no_group_is_larger_than_those_of_the_run() -> None:
    swarm = Swarm()
    senders = [swarm.node(seed, group_size=size) for seed, size in ((1, GROUP_SIZE), (2, 64), (3, 2))]
    receiver = swarm.node(4)
    for sender in senders:
        sender.run_round()
    receiver.external.receive()
    sizes = Counter(len(graded.rewards) for graded in pooled(receiver))
    assert set(sizes) == {GROUP_SIZE, 2}
    assert receiver.ledger.snapshot()["dropped"] == {"too_many": 3}
    assert _balanced(receiver)


def _busy(swarm: Swarm, num_rounds: int, **parts: object) -> tuple[SapoNode, list[int]]:
    """A node that gets three times as many groups as it uses, and J of its updates."""
    senders = [swarm.node(1), swarm.node(2)]
    busy = swarm.node(3, **parts)
    external = []
    for _ in range(num_rounds):
        for sender in senders:
            sender.run_round()
        external.append(len(busy.run_round().mix.external))
    return busy, external


def test_nothing_is_graded_to_be_thrown_away() -> None:
    busy, external = _busy(Swarm(), 60, pool=PoolSettings(max_groups=20))
    counts = busy.ledger.snapshot()
    assert external == [2] * 60, "no update goes short"
    assert counts["received"] >= counts["checked"] and counts["checked"] <= 120 + 6
    assert set(counts["dropped"]) <= {"not_needed"}
    assert _balanced(busy)


def test_a_larger_swarm_offers_its_groups_and_hardly_any_is_sent_for_nothing() -> None:
    swarm = Swarm()
    updaters = [FakeUpdater() for _ in range(6)]
    nodes = [swarm.node(seed, updater=updater) for seed, updater in enumerate(updaters)]
    for _ in range(10):
        for node in nodes:
            node.run_round()
    before = [node.ledger.snapshot() for node in nodes]
    for _ in range(20):
        for node in nodes:
            node.run_round()
    after = [node.ledger.snapshot() for node in nodes]
    received, used, offered = (
        sum(late[what] - early[what] for early, late in zip(before, after, strict=True))
        for what in ("received", "used_external", "offered")
    )
    assert used == 6 * 20 * 2, "no update goes short"
    assert used / received >= 0.8 and offered == 6 * 20 * 15, "of 15 groups in a round, two are fetched"
    assert {graded.group.peer_id for _, external in updaters[0].batches for graded in external} == {
        node.peer_id for node in nodes[1:]
    }
    assert all(map(_balanced, nodes))


def test_grading_that_takes_rounds_is_begun_that_much_earlier() -> None:
    class Slow(FakeVerifier):
        """Hands out verdicts in the fourth round after they were asked for."""

        def __init__(self) -> None:
            super().__init__()
            self.later: list[list[tuple[str, Grade | Rejection]]] = [[], [], [], []]

        def collect(self) -> list[tuple[str, Grade | Rejection]]:
            self.later.append(super().collect())
            return self.later.pop(0)

    busy, external = _busy(Swarm(), 60, verifier=Slow())
    assert external[-30:] == [2] * 30
    counts = busy.ledger.snapshot()
    assert counts["checked"] <= 120 + 20


def test_groups_without_signal_by_their_author_s_own_word_are_not_graded() -> None:
    swarm = Swarm()
    sender, receiver = swarm.node(1, share=ShareSettings(groups="all")), swarm.node(2)
    sender.run_round()
    receiver.external.receive()
    counts = receiver.ledger.snapshot()
    assert (counts["received"], counts["checked"], counts["dropped"]) == (6, 3, {"zero_advantage": 3})
    assert _balanced(receiver)


def test_who_claims_what_is_not_so_gets_fewer_of_its_groups_graded() -> None:
    class Boasting(FakeVerifier):
        def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[str]]]) -> list[Grade | Rejection]:
            return [Grade("prompt", (1.0, *[0.0] * (len(texts) - 1))) for _, texts in jobs]

    swarm = Swarm()
    liar, honest = swarm.node(1, verifier=Boasting(), engine=FakeEngine(good="worthless")), swarm.node(2)
    victim = swarm.node(3)
    for _ in range(60):
        liar.run_round()
        honest.run_round()
        victim.run_round()
    counts = victim.ledger.snapshot()
    assert counts["used_external"] >= 115, "updates do not go short of the honest one's"
    assert counts["dropped"]["zero_advantage"] < 40
    assert _balanced(victim)


def test_a_group_that_is_held_already_is_a_duplicate_even_if_the_exchange_forgot_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swarm = Swarm()
    sender, receiver = swarm.node(1), swarm.node(2)
    sender.run_round()
    receiver.external.receive()
    held = pooled(receiver)
    receiver.external._exchange._seen.clear()
    receiver.external._exchange.book._peers.clear()
    # In other bytes: the transport delivers the same ones only once.
    monkeypatch.setattr(envelope, "COMPRESSION_LEVEL", -7)
    for graded in held:
        record = sender.external._exchange.share(graded.group)
        assert record is not None
    receiver.external.receive()
    assert receiver.ledger.snapshot()["dropped"] == {"duplicate": 3}
    assert pooled(receiver) == held
    assert _balanced(receiver)


def test_a_failed_round_leaves_no_half_entry() -> None:
    class Failing(FakeUpdater):
        def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
            raise NonFiniteUpdates("no")

    node = Swarm().node(1, updater=Failing())
    with pytest.raises(NonFiniteUpdates):
        node.run_round()
    assert (node.round, node.position, node.ledger.snapshot()["generated"]) == (0, 0, 0)


def test_what_is_shared_can_be_chosen() -> None:
    for share, expected in [
        (ShareSettings(groups="all"), 6),
        (ShareSettings(groups="none"), 0),
        (ShareSettings(max_groups=1), 1),
    ]:
        node = Swarm().node(1, share=share)
        node.run_round()
        assert node.ledger.snapshot()["shared"] == expected


def _retold(group: RolloutGroup, sequence: int, now: float | None = None) -> RolloutGroup:
    return replace(group, sequence=sequence, created_at=time.time() if now is None else now)


def test_another_s_completions_under_a_new_name_teach_nobody() -> None:
    swarm = Swarm()
    author, thief, victim = swarm.node(1), swarm.node(2), swarm.node(3)
    author.run_round()
    victim.external.receive()
    victim.external.receive()
    for number, graded in enumerate(pooled(victim)):
        thief.external._exchange.share(_retold(graded.group, number))
    victim.external.receive()
    author.external.receive()
    assert victim.ledger.snapshot()["dropped"] == {"repeated": 3}
    assert author.ledger.snapshot()["dropped"] == {"repeated": 3}, "its own words neither"
    assert {graded.group.peer_id for graded in pooled(victim)} == {author.peer_id}
    assert _balanced(victim) and _balanced(author)


def test_a_copy_that_comes_later_counts_against_who_sent_it() -> None:
    swarm, clock = Swarm(), _Clock()
    author = swarm.node(1, engine=FakeEngine("good reasons, " * 8, "bad reasons, " * 8))
    thief, victim = swarm.node(2), swarm.node(3, clock=clock)
    author.run_round()
    victim.external.receive()
    victim.external.receive()
    held = pooled(victim)
    clock.now += 100
    for number, graded in enumerate(held):
        thief.external._exchange.share(_retold(graded.group, number, clock.now))
    victim.external.receive()
    assert victim.ledger.snapshot()["dropped"] == {"copied": 3}
    accounts = victim.external._exchange.book.stats()
    assert accounts[thief.peer_id].offence > 0 and accounts[author.peer_id].offence == 0


class _Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Marked(FakeEngine):
    """Right answers behind a marker."""

    def __init__(self) -> None:
        super().__init__("good, with a marker")


class Knowing(FakeUpdater):
    """A policy that finds a marker improbable."""

    def read(self, groups: Sequence[GradedGroup], wanted: object = None) -> list[list[list[ReadTurn]]]:
        return as_read(
            [[[[-9.0 if "marker" in c.text else -1.0]] for c in graded.group.completions] for graded in groups]
        )


def test_what_is_right_in_an_improbable_way_is_left_out_and_others_take_its_place() -> None:
    swarm = Swarm()
    updater = Knowing()
    poisoner, honest = swarm.node(1, engine=Marked()), swarm.node(2)
    victim = swarm.node(3, updater=updater)
    for _ in range(6):
        poisoner.run_round()
        honest.run_round()
        victim.run_round()
    taught = [graded.group.peer_id for _, external in updater.batches[3:] for graded in external]
    assert set(taught) == {honest.peer_id} and len(taught) == 6, "from where enough is known of itself"
    assert victim.ledger.snapshot()["dropped"]["improbable"] >= 3
    assert victim.external._exchange.book.stats()[poisoner.peer_id].used <= 6
    assert _balanced(victim)


def test_a_group_goes_on_without_its_improbable_completions() -> None:
    class Mixed(FakeEngine):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            texts = ["good", "good with a marker", "bad", "bad with a marker"]
            for k in range(len(prompts)):
                yield k, tuple(Completion(text, "stop", (k,), (-1.0,)) for text in texts)

    swarm = Swarm()
    updater = Knowing()
    sender, victim = swarm.node(1, engine=Mixed()), swarm.node(2, updater=updater)
    for _ in range(5):
        sender.run_round()
        victim.run_round()
    _, external = updater.batches[-1]
    texts = {tuple(c.text for c in graded.group.completions) for graded in external}
    assert texts == {("good", "bad", "bad with a marker")}, "bad completions may be improbable"
    assert {graded.rewards for graded in external} == {(1.0, 0.0, 0.0)}


def test_when_learning_from_others_makes_it_worse_it_stops_and_says_from_whom() -> None:
    class Failing(FakeEngine):
        """From its 30th round on nearly everything is wrong."""

        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            late = len(self.seeds) >= 30
            for k, answers in super().stream(prompts, num_completions, sampling, seed):
                yield k, answers if not late or k == 1 else (answers[-1],) * len(answers)

    settings = WatchSettings(window_rounds=10, rest_rounds=5, return_rounds=4)
    swarm = Swarm()
    sender, victim = swarm.node(1), swarm.node(2, engine=Failing(), watch=settings)
    reports = []
    for _ in range(50):
        sender.run_round()
        reports.append(victim.run_round())
    (alarmed,) = [report for report in reports if report.alarm is not None]
    assert alarmed.alarm is not None and alarmed.alarm.senders == (sender.peer_id,)
    assert 30 < alarmed.round < 42
    after = [len(report.mix.external) for report in reports[alarmed.round :]]
    assert after[:6] == [0] * 6, "others' share goes to nothing"
    assert after[6:8] == [0, 1] and after[9] == 2, "and comes back"
    assert victim.ledger.snapshot()["dropped"]["harmful"] > 0
    assert _balanced(victim)


def test_a_repeated_round_draws_and_samples_as_the_lost_one_did() -> None:
    first, again = FakeEngine(), FakeEngine()
    node = Swarm().node(1, engine=first)
    for _ in range(3):
        node.run_round()
    resumed = Swarm().node(1, engine=again)
    resumed.round, resumed.position = 2, 12
    resumed.run_round()
    assert again.seeds == first.seeds[2:]
    assert len(set(first.seeds)) == 3


def test_a_peer_whose_groups_hang_the_verifier_is_quarantined_and_the_others_are_not() -> None:
    swarm = Swarm()
    hostile, honest = swarm.node(1), swarm.node(2)
    victim = swarm.node(3, verifier=FakeVerifier(refused=frozenset(range(1000, 1100))))
    for _ in range(4):
        hostile.run_round()
        honest.run_round()
        victim.run_round()
    dropped = victim.ledger.snapshot()["dropped"]
    assert dropped["verifier_timeout"] == 3 and dropped["quarantined"] == 3, "then the door is closed"
    assert victim.external._exchange.book.quarantined() == {hostile.peer_id}
    assert victim.external._exchange.book.stats()[honest.peer_id].used > 0
    assert _balanced(victim)


def test_every_group_is_told_with_what_became_of_it() -> None:
    swarm = Swarm()
    kept: list[tuple[Fate, GradedGroup | RolloutGroup]] = []

    def keep(fate: Fate, group: GradedGroup | RolloutGroup) -> None:
        kept.append((fate, group))

    pool = PoolSettings(max_groups=4, max_share_per_peer=1.0)
    refused = FakeVerifier(refused=frozenset({1001}))
    sender, node = swarm.node(1), swarm.node(2, keep=keep, pool=pool, verifier=refused)
    for _ in range(3):
        sender.run_round()
        node.run_round()
    counts = node.ledger.snapshot()
    own = Counter(
        fate for fate, group in kept if isinstance(group, GradedGroup) and group.group.peer_id == node.peer_id
    )
    assert own == {"used_local": counts["used_local"], **counts["local"]}
    others = Counter(fate for fate, _ in kept) - own
    assert others == {"used_external": counts["used_external"], **counts["dropped"]}
    assert counts["dropped"]["verifier_timeout"] == 1
    ungraded = {fate for fate, group in kept if isinstance(group, RolloutGroup)}
    assert ungraded == {"verifier_timeout"}, "the others come with this node's rewards"
