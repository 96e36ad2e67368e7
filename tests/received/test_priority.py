"""Who was first with a group's completions, in every order in which offers, groups and copies of them may arrive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from swarm.net.records.offers import describe
from swarm.net.trust.exchange import Exchange
from swarm.reasons import Reason
from swarm.received import copies as copies_module
from swarm.received.copies import GRACE_S, MAX_PER_QUESTION, Copies
from swarm.received.intake import Intake, IntakeLimits, Selection
from swarm.telemetry.ledger import Ledger
from swarm.types import (
    Arrival,
    Commitment,
    DatasetRef,
    NetworkStatus,
    OfferedGroup,
    OfferedGroups,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
)
from swarm.types.commitments import DIGEST_BYTES, agrees, commitment, digests_of
from swarm.types.questions import stream_seed
from tests.example_groups import reference, rollout_group
from tests.net.records import make_identity

LONG = "for this reason and for that one, and because of much else that has to be thought of before, it is "
BEGAN = 1_700_000_000.0
HONEST = ("alice", "bob")
THIEF = "thief"


@dataclass(frozen=True)
class Story:
    """What arrives of one group, in seconds after it was made; None: not at all."""

    author: str
    is_long: bool
    is_row: bool
    offer_at: float | None
    whole_at: float | None
    """Also of one on offer, as from whoever fetched it."""
    copy_at: float
    copy_is_offered: bool
    copy_is_backdated: bool
    again_s: float
    """All of it comes once more, this much later, as from a helper's repair."""
    pull_s: float

    def first_at(self) -> float:
        """When its author's first commitment is heard."""
        return min((at for at in (self.offer_at, self.whole_at) if at is not None), default=float("inf"))


TIMES = st.floats(0.0, 400.0)
STORIES = st.builds(
    Story,
    author=st.sampled_from(HONEST),
    is_long=st.booleans(),
    is_row=st.booleans(),
    offer_at=st.none() | TIMES,
    whole_at=st.none() | TIMES,
    copy_at=TIMES.map(lambda at: at + 0.5),
    copy_is_offered=st.booleans(),
    copy_is_backdated=st.booleans(),
    again_s=st.floats(0.0, 100.0),
    pull_s=st.floats(0.0, 30.0),
)


@dataclass
class Network:
    """A transport whose arrivals are written down in advance."""

    now: float = BEGAN
    coming: list[VerifiedGroup | OfferedGroups] = field(default_factory=list)
    held: dict[bytes, tuple[VerifiedGroup, float]] = field(default_factory=dict)
    """By content id, with the time that it takes to fetch."""
    banned: Collection[str] = ()

    def drain(self) -> list[Arrival]:
        come = sorted((each for each in self.coming if each.heard_at <= self.now), key=lambda each: each.heard_at)
        self.coming = [each for each in self.coming if each.heard_at > self.now]
        return [each for each in come if author_of(each) not in self.banned]

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        group, pull_s = self.held[offered.offer.content_id]
        self.coming.append(replace(group, heard_at=self.now + pull_s))

    def status(self) -> NetworkStatus:
        return NetworkStatus("run", (), None)

    def complaints(self) -> list[tuple[str, Reason]]:
        return []

    def ban(self, peer_ids: Collection[str]) -> None:
        self.banned = frozenset(peer_ids)

    def trust(self, peer_ids: Collection[str], known: Collection[str] = (), newcomers: float = 1.0) -> None:
        pass


@dataclass
class Grading:
    """A verifier that notes which groups come as far as this."""

    begun: list[str] = field(default_factory=list)

    def submit(self, key: str, ref: TaskRef, texts: object, sender: str = "") -> None:
        self.begun.append(key)

    def collect(self) -> list[object]:
        return []


class Victim:
    """A node that fetches and grades all that it is offered or sent, up to the point where a group is graded."""

    def __init__(self, network: Network, grading: Grading, seen: dict[str, int], own: object) -> None:
        self.network = network
        self.exchange = Exchange(network, own, clock=lambda: network.now)  # type: ignore[arg-type]
        self.exchange.book.restore(seen)
        self.intake = Intake(
            self.exchange,
            grading,  # type: ignore[arg-type]
            Ledger(),
            Selection(),
            IntakeLimits(1_000),
            Copies("victim"),
            keep=lambda fate, group: None,
            clock=lambda: network.now,
        )


def author_of(arrival: VerifiedGroup | OfferedGroups) -> str:
    return arrival.peer_id if isinstance(arrival, OfferedGroups) else arrival.group.peer_id


def original_of(story: Story, number: int, made_at: float) -> VerifiedGroup:
    row = DatasetRef("gsm8k", "openai/gsm8k", "main", "digest", number, "hash")
    group = rollout_group(
        story.author,
        number,
        [f"{LONG if story.is_long else ''}{number} {k}" for k in range(4)],
        question=row if story.is_row else reference(number),
        run_id="run",
        sequence=int(made_at * 1_000),
        created_at=made_at,
        rewards=(1.0, 0.0, 1.0, 0.0),
    )
    return VerifiedGroup(content_id(number, group.peer_id), group, f"{number} original".encode())


def copy_of(original: VerifiedGroup, number: int, made_at: float) -> VerifiedGroup:
    group = replace(original.group, peer_id=THIEF, sequence=int(BEGAN * 1_000) + number, created_at=made_at)
    return VerifiedGroup(content_id(number, THIEF), group, f"{number} copy".encode())


def content_id(number: int, peer_id: str) -> str:
    return number.to_bytes(8, "big").hex() + peer_id.encode().ljust(8, b"-")[:8].hex()


def offered(group: VerifiedGroup) -> OfferedGroups:
    offer = describe(group, 400.0)
    assert offer is not None
    return OfferedGroups(group.group.peer_id, (offer,))


def arrivals(story: Story, number: int, made_at: float, network: Network) -> list[VerifiedGroup | OfferedGroups]:
    """All that arrives of a story; what can be fetched is held."""
    original = original_of(story, number, made_at)
    copy = copy_of(original, number, made_at if story.copy_is_backdated else made_at + story.copy_at)
    for each in (original, copy):
        network.held[bytes.fromhex(each.content_id)] = (each, story.pull_s)
    events: list[tuple[float | None, VerifiedGroup | OfferedGroups]] = [
        (story.offer_at, offered(original)),
        (story.whole_at, original),
        (story.copy_at, offered(copy) if story.copy_is_offered else copy),
    ]
    heard = [replace(what, heard_at=made_at + at) for at, what in events if at is not None]
    return heard + [replace(what, heard_at=what.heard_at + story.again_s) for what in heard]


@given(
    told=st.lists(STORIES, min_size=1, max_size=6),
    rounds=st.lists(st.floats(2.0, 90.0), min_size=1, max_size=10),
    restart_after=st.none() | st.integers(0, 9),
)
def test_no_honest_author_is_charged_and_no_copy_takes_the_place_of_what_was_committed_to_before(
    told: Sequence[Story], rounds: Sequence[float], restart_after: int | None, own: object
) -> None:
    network, grading = Network(), Grading()
    for number, story in enumerate(told):
        network.coming += arrivals(story, number, BEGAN + 10.0 * number, network)
    victim, restarted_at = Victim(network, grading, {}, own), BEGAN
    for number in range(1_000):
        network.now += rounds[number % len(rounds)]
        victim.intake.receive(())
        for author in HONEST:
            account = victim.exchange.book.stats().get(author)
            assert account is None or account.offence == 0.0, account
        if number == restart_after:
            victim = Victim(network, grading, victim.exchange.book.highest_sequences(), own)
            restarted_at = network.now
        if not network.coming and network.now > BEGAN + 1_000.0:
            break
    for number, story in enumerate(told):
        made_at = BEGAN + 10.0 * number
        first_at, copied_at = made_at + story.first_at(), made_at + story.copy_at
        if restarted_at < first_at < copied_at and (story.is_long or not story.is_row):
            assert content_id(number, THIEF) not in grading.begun
            if restart_after is None:  # else it may be refused as replayed
                assert grading.begun.count(content_id(number, story.author)) == 1, "the original is used"


def test_a_flood_of_offers_within_a_round_displaces_no_commitment(own: object) -> None:
    """What arrives between two rounds is handed over at once, however much it is."""
    network, grading = Network(), Grading()
    story = Story("alice", True, False, 1.0, None, 3.0, False, False, 0.0, 0.1)
    network.coming += arrivals(story, 0, BEGAN, network)
    for flooder in range(4):
        for number in range(40):
            group = rollout_group(f"flooder {flooder}", number + 1, TEXTS)
            names = [content_id(64 * number + k, group.peer_id) for k in range(64)]
            offers = [offered(VerifiedGroup(name, group, b"record")) for name in names]
            told = tuple(
                replace(each.offers[0], commitment=bytes([flooder, number, k, 0]) + each.offers[0].commitment[4:])
                for k, each in enumerate(offers)
            )
            network.coming.append(OfferedGroups(group.peer_id, told, heard_at=BEGAN + 2.0))
    victim = Victim(network, grading, {}, own)
    for _ in range(3):
        network.now += 60.0
        victim.intake.receive(())
    assert grading.begun == [content_id(0, "alice")]


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> object:
    return make_identity(tmp_path_factory.mktemp("own"), "victim")


def heard(group: RolloutGroup, at: float) -> Commitment:
    return Commitment(group.peer_id, commitment(group), at)


TEXTS = [LONG + answer for answer in ("one", "two", "three", "four")]


def test_a_group_that_was_on_offer_is_new_whoever_sends_its_words_meanwhile() -> None:
    copies, original = Copies(), rollout_group("author", 1, TEXTS)
    copies.note(heard(original, 0.0))
    assert copies.judge(rollout_group("thief", 1, TEXTS), 1.0) == Reason.REPEATED
    assert copies.judge(original, 500.0) is None
    assert copies.judge(original, 501.0) == Reason.REPEATED, "its words teach once"


def test_a_copy_made_later_by_its_own_word_is_charged_although_the_original_was_never_fetched() -> None:
    copies = Copies()
    copies.note(heard(rollout_group("author", 1, TEXTS), 0.0))
    later = rollout_group("thief", 1, TEXTS, created_at=GRACE_S + 1)
    assert copies.judge(later, GRACE_S + 1) == Reason.COPIED


def test_a_record_that_was_held_back_gets_its_author_not_blamed() -> None:
    copies = Copies()
    copies.judge(rollout_group("thief", 1, TEXTS), 5.0)
    assert copies.judge(rollout_group("author", 1, TEXTS, created_at=0.0), 600.0) == Reason.REPEATED


def test_a_copy_of_this_node_s_own_words_is_charged_at_once() -> None:
    copies = Copies("me")
    copies.judge(rollout_group("me", 1, TEXTS), 0.0)
    assert copies.judge(rollout_group("thief", 1, TEXTS), 1.0) == Reason.COPIED
    copies.judge(rollout_group("me", 2, ["17", "18"]), 0.0)
    assert copies.judge(rollout_group("thief", 2, ["17", "18"]), 1.0) == Reason.REPEATED, "it may have foreseen them"


def test_two_may_find_the_same_long_answers_to_a_row() -> None:
    row = DatasetRef("gsm8k", "openai/gsm8k", "main", "digest", 7, "hash")
    copies = Copies("me")
    copies.judge(rollout_group("me", 1, TEXTS, question=row), 0.0)
    assert copies.judge(rollout_group("other", 1, TEXTS, question=row), 1.0) == Reason.REPEATED


SHORT = [str(number) for number in range(4)]


def asked_of(peer_id: str, by: str, texts: Sequence[str]) -> RolloutGroup:
    """A group of `by` on a question of another's stream."""
    return rollout_group(by, 1, texts, question=replace(reference(1), seed=stream_seed(peer_id)))


@pytest.mark.parametrize("texts", [SHORT, TEXTS])
def test_whoever_foresees_an_author_s_questions_and_answers_keeps_nobody_from_learning_of_them(
    texts: Sequence[str],
) -> None:
    """The stream of an author's questions follows from its name, and many have a few dozen answers."""
    copies = Copies("me")
    for start in range(0, 64, 4):
        guesses = [str(start + k) for k in range(4)]
        copies.note(heard(asked_of("author", "thief", guesses), 0.0))
    copies.note(heard(asked_of("author", "thief", TEXTS), 0.0))
    assert copies.judge(asked_of("author", "author", texts), 1.0) is None
    assert copies.judge(asked_of("author", "author", texts), 2.0) == Reason.REPEATED, "its words teach once"
    assert copies.judge(asked_of("author", "thief", texts), 1.0) == Reason.REPEATED
    assert copies.judge(asked_of("author", "thief", ["other", "words"]), 1.0) == Reason.REPEATED
    assert copies.judge(asked_of("me", "thief", ["other", "words"]), 1.0) == Reason.REPEATED


def test_a_copy_that_comes_first_is_known_by_its_question_if_the_author_was_heard_before() -> None:
    """As where a thief's link is faster than the author's."""
    copies = Copies()
    copies.judge(rollout_group("author", 2, TEXTS), 0.0)
    assert copies.judge(asked_of("author", "thief", TEXTS), 1.0) == Reason.REPEATED
    assert copies.judge(asked_of("author", "author", TEXTS), 500.0) is None


def test_peers_whose_questions_are_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies_module, "MAX_STREAMS", 3)
    copies = Copies("me")
    for number in range(9):
        copies.judge(rollout_group(f"name {number}", number, SHORT), 0.0)
    assert copies.judge(asked_of("me", "thief", TEXTS), 0.0) == Reason.REPEATED, "own ones are always known"
    assert copies.judge(asked_of("name 8", "thief", TEXTS), 0.0) == Reason.REPEATED
    assert copies.judge(asked_of("name 0", "other", TEXTS), 0.0) is None


def test_another_s_digests_commit_to_nothing() -> None:
    """Offered first under another name, as where the author's own offer has not arrived yet."""
    copies, original = Copies(), rollout_group("author", 1, TEXTS)
    copies.note(Commitment("thief", commitment(original), 0.0))
    copies.note(heard(original, 1.0))
    assert copies.judge(original, 2.0) is None
    assert not agrees(commitment(original), replace(original, peer_id="thief"))


def test_a_commitment_agrees_with_its_group_only() -> None:
    group = rollout_group("author", 1, ["1", "2", "3", "4"])
    committed = commitment(group)
    assert len(committed) == 5 * DIGEST_BYTES and agrees(committed, group)
    assert not agrees(committed, rollout_group("author", 2, ["1", "2", "3", "4"]))
    assert not agrees(committed, rollout_group("author", 1, ["1", "6", "7", "8"]))
    assert agrees(committed, rollout_group("author", 1, ["1", "2", "3", "5"])), "letter case differs between versions"
    assert len(digests_of(commitment(rollout_group("author", 1, ["1", " 1", "1"])))) == 1


def test_a_flood_of_commitments_to_a_question_displaces_itself() -> None:
    copies, original = Copies(), rollout_group("author", 1, TEXTS)
    copies.note(heard(original, 0.0), "author")
    for k in range(2 * MAX_PER_QUESTION):
        copies.note(heard(rollout_group("flood", 1, [f"{k} {j}" for j in range(4)]), 1.0))
    assert copies.judge(rollout_group("thief", 1, TEXTS), 2.0) == Reason.REPEATED
    assert copies.judge(original, 3.0) is None


def test_a_flood_of_commitments_displaces_those_of_its_own_account() -> None:
    copies, original = Copies(max_remembered=100), rollout_group("author", 1, TEXTS)
    copies.note(heard(original, 0.0), "author")
    for k in range(1_000):
        copies.note(heard(rollout_group(f"name-{k}", k, TEXTS), 1.0))
    assert copies.num_remembered <= 100
    assert copies.judge(rollout_group("thief", 1, TEXTS), 2.0) == Reason.REPEATED
