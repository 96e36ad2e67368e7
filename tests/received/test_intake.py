"""The way in of others' groups: what is not worth grading is not graded, and nobody takes all the room."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pytest

from swarm.reasons import Reason
from swarm.received import intake as waiting_module
from swarm.received.copies import Copies
from swarm.received.intake import PROMISE_S, PULL_PATIENCE_S, Intake, IntakeLimits, Selection, Waiting
from swarm.telemetry.ledger import Ledger
from swarm.types import (
    Commitment,
    Grade,
    NetworkStatus,
    Offer,
    OfferedGroup,
    ReceivedGroup,
    Rejection,
    RolloutGroup,
    TaskRef,
)
from swarm.types.commitments import commitment
from tests.example_groups import rollout_group


class FakeExchange:
    def __init__(self) -> None:
        self.inbox: list[RolloutGroup] = []
        self.reports: Counter[tuple[str, str]] = Counter()
        self.offered: list[OfferedGroup] = []
        self.pulled: list[OfferedGroup] = []
        self.quarantined: set[str] = set()
        self.committed: list[Commitment] = []

    def receive(self) -> tuple[list[ReceivedGroup], dict[str, int]]:
        arrived, self.inbox = self.inbox, []
        return [self.received(f"{group.peer_id}-{group.sequence}", group) for group in arrived], {}

    def received(self, content_id: str, group: RolloutGroup) -> ReceivedGroup:
        return ReceivedGroup(content_id, group, self.account(group.peer_id), group.memory_bytes)

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        return None

    def offers(self) -> list[OfferedGroup]:
        offered, self.offered = self.offered, []
        return offered

    def commitments(self) -> list[Commitment]:
        return self.committed

    def banned(self) -> frozenset[str]:
        return frozenset(self.quarantined)

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        self.pulled.append(offered)

    def wait(self, timeout_s: float) -> bool:
        return bool(self.inbox)

    def account(self, peer_id: str) -> str:
        return "" if peer_id.startswith("name-") else peer_id

    def report(self, peer_id: str, outcome: str, verify_s: float = 0.0) -> None:
        self.reports[peer_id, outcome] += 1

    def took(self, num_groups: int, num_wanted: int) -> None:
        pass

    def status(self) -> NetworkStatus:
        return NetworkStatus("run", (), None)


class RightVerifier:
    """Finds every completion right."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Grade | Rejection]] = []

    def submit(self, key: str, ref: TaskRef, texts: Sequence[str], sender: str = "") -> None:
        self.done.append((key, Grade("question", (1.0,) * len(texts))))

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        done, self.done = self.done, []
        return done


class SlowVerifier:
    """Grades nothing until it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, str]] = []

    def submit(self, key: str, ref: TaskRef, texts: Sequence[str], sender: str = "") -> None:
        self.waiting.append((key, sender))

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        return []


def make_intake(
    exchange: FakeExchange,
    verifier: object,
    selection: Selection | None = None,
    ledger: Ledger | None = None,
    copies: Copies | None = None,
    clock: Callable[[], float] = time.time,
) -> Intake:
    return Intake(
        exchange,  # type: ignore[arg-type]
        verifier,  # type: ignore[arg-type]
        ledger or Ledger(),
        selection or Selection(),
        IntakeLimits(100),
        copies or NoCopies(),
        keep=lambda fate, group: None,
        clock=clock,
    )


class NoCopies(Copies):
    """Finds every group new."""

    def judge(self, group: RolloutGroup, now: float) -> Reason | None:
        return None


class NothingLong(Selection):
    """Skips long groups."""

    def skip_reason(self, group: RolloutGroup) -> Reason | None:
        return Reason.TOO_LONG if group.num_chars > 10**6 else None


class AnyRewards(Selection):
    """Wants groups without signal, too."""

    def wants(self, rewards: Sequence[float]) -> bool:
        return True


def _receive(groups: Sequence[RolloutGroup]) -> tuple[SlowVerifier, FakeExchange, dict[str, int]]:
    exchange, verifier, ledger = FakeExchange(), SlowVerifier(), Ledger()
    exchange.inbox = list(groups)
    make_intake(exchange, verifier, NothingLong(), ledger).receive(())
    return verifier, exchange, ledger.snapshot()["dropped"]  # type: ignore[return-value]


def test_what_is_hopeless_is_never_graded() -> None:
    verifier, exchange, dropped = _receive([rollout_group("bomber", 0, ("a" * 10**6, "b")), rollout_group("honest", 1)])
    assert verifier.waiting == [("honest-1", "honest")], "the verifier is told whose it is"
    assert dropped == {"too_long": 1} and exchange.reports == {("bomber", "too_long"): 1}


def test_what_is_being_graded_is_bounded_in_memory_and_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "MAX_BYTES", 400_000)
    bombs = [rollout_group("bomber", k, ("a" * 10_000 + "\N{GRINNING FACE}",)) for k in range(50)]
    honest = [rollout_group("honest", k) for k in range(50)]
    verifier, _, dropped = _receive([*bombs, *honest])
    taken = Counter(sender for _, sender in verifier.waiting)
    assert taken == {"bomber": 2, "honest": 50} and dropped == {"peer_quota": 48}


def test_all_newcomers_share_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "MAX_BYTES", 400_000)
    bombs = [rollout_group(f"name-{k}", 0, ("a" * 10_000 + "\N{GRINNING FACE}",)) for k in range(50)]
    verifier, _, _ = _receive([*bombs, rollout_group("honest", 1)])
    assert [sender for _, sender in verifier.waiting] == ["", "", "honest"]


def test_one_that_is_larger_than_the_room_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "MAX_BYTES", 1_000)
    verifier, _, _ = _receive([rollout_group("a", 0, ("x" * 10_000,)), rollout_group("b", 0, ("x" * 10_000,))])
    assert verifier.waiting == [("a-0", "a")]


@pytest.mark.parametrize("filtered", [True, False])
def test_without_a_filter_groups_without_signal_are_kept_and_earn_nothing(filtered: bool) -> None:
    exchange, ledger = FakeExchange(), Ledger()
    exchange.inbox = [rollout_group("friend", 1)]
    selection = Selection() if filtered else AnyRewards()
    kept = make_intake(exchange, RightVerifier(), selection, ledger).receive(())
    assert [each.rewards for each in kept] == ([] if filtered else [(1.0, 1.0)])
    assert exchange.reports == {("friend", "zero_advantage"): 1}
    assert ledger.snapshot()["dropped"] == ({"zero_advantage": 1} if filtered else {})


def test_larger_groups_than_those_of_the_run_are_neither_graded_nor_fetched() -> None:
    exchange, verifier, ledger = FakeExchange(), SlowVerifier(), Ledger()
    exchange.inbox = [rollout_group("greedy", 0, ("a", "b", "c")), rollout_group("honest", 1, ("a", "b"))]
    content_ids = [bytes([number]) * 16 for number in range(3)]
    exchange.offered = [
        OfferedGroup("somebody", Offer(bytes(16), content_id, 3_000, "gcd", num_completions, 0.5, 0.5, bytes(8), 60))
        for content_id, num_completions in zip(content_ids, (1, 2, 3), strict=True)
    ]
    selection = AnyRewards()
    selection.max_completions = 2
    intake = make_intake(exchange, verifier, selection, ledger)
    intake.receive(())
    assert verifier.waiting == [("honest-1", "honest")]
    assert ledger.snapshot()["dropped"] == {"too_many": 1} and exchange.reports == {("greedy", "too_many"): 1}
    assert [each.offer.content_id for each in exchange.pulled] == content_ids[:2], "smaller ones are welcome"


class Noting(Selection):
    """Chooses everything, and remembers what came of it."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, bool]] = []
        self.late_ones: list[str] = []
        self.arrived: list[str] = []
        self.chooses = True

    def choose(self, waiting: Waiting) -> Iterable[str]:
        return [each.key for each in waiting] if self.chooses else []

    def came(self, key: str, content_id: str) -> None:
        self.arrived.append(content_id)

    def late(self, key: str) -> None:
        self.late_ones.append(key)

    def checked(self, key: str, usable: bool) -> None:
        self.outcomes.append((key, usable))


@pytest.mark.parametrize("author", ["honest", "thief"])
def test_who_offers_another_s_group_earns_nothing_with_it(author: str) -> None:
    exchange, choice, verifier = FakeExchange(), Noting(), SlowVerifier()
    intake = make_intake(exchange, verifier, choice)
    content_id = bytes(range(16))
    offer = Offer(bytes(16), content_id, 3_000, "gcd", 2, 0.5, 0.5, bytes(8), 60)
    exchange.offered = [OfferedGroup("thief", offer)]
    intake.receive(())
    assert exchange.pulled == [OfferedGroup("thief", offer)] and choice.outcomes == []
    group = rollout_group(author, 1)
    exchange.receive = lambda: ([exchange.received(content_id.hex(), group)], {})  # type: ignore[method-assign]
    intake.receive(())
    assert choice.outcomes == ([(f"{content_id.hex()}/thief", False)] if author == "honest" else [])
    assert verifier.waiting == [(content_id.hex(), author)], "it is graded as its author's"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _pulling(*authors: str) -> tuple[Intake, FakeExchange, Noting, Clock]:
    """An intake that has begun to fetch one group of each."""
    exchange, choice, clock = FakeExchange(), Noting(), Clock()
    intake = make_intake(exchange, SlowVerifier(), choice, clock=clock)
    exchange.offered = [
        OfferedGroup(author, Offer(bytes(16), _name(author), 3_000, "gcd", 2, 0.5, 0.5, bytes(8), 60))
        for author in authors
    ]
    intake.receive(())
    assert [each.peer_id for each in exchange.pulled] == list(authors)
    return intake, exchange, choice, clock


def _name(author: str) -> bytes:
    return author.encode().ljust(16)


def _key(author: str) -> str:
    return f"{_name(author).hex()}/{author}"


def test_a_promise_that_is_not_kept_soon_holds_no_place_and_is_taken_all_the_same() -> None:
    intake, exchange, choice, clock = _pulling("quick", "slow", "silent")
    clock.now = PROMISE_S + 0.1
    exchange.receive = lambda: ([exchange.received(_name("quick").hex(), rollout_group("quick"))], {})  # type: ignore[method-assign]
    intake.receive(())
    intake.receive(())
    assert choice.late_ones == [_key("slow"), _key("silent")] and choice.outcomes == []
    exchange.receive = lambda: ([exchange.received(_name("slow").hex(), rollout_group("slow", 1))], {})  # type: ignore[method-assign]
    clock.now = PULL_PATIENCE_S + 0.1
    intake.receive(())
    assert choice.arrived == [_name("quick").hex(), _name("slow").hex()]
    assert choice.outcomes == [(_key("silent"), False)]


def test_a_fetched_group_is_graded_though_as_many_wait_as_may() -> None:
    exchange, choice, verifier, ledger = FakeExchange(), Noting(), SlowVerifier(), Ledger()
    limits = IntakeLimits(100, max_groups=2)
    intake = Intake(exchange, verifier, ledger, choice, limits, NoCopies(), lambda fate, group: None, Clock())  # type: ignore[arg-type]
    exchange.offered = [
        OfferedGroup("honest", Offer(bytes(16), _name("honest"), 3_000, "gcd", 2, 0.5, 0.5, bytes(8), 60))
    ]
    intake.receive(())
    choice.chooses = False
    exchange.inbox = [rollout_group("a"), rollout_group("b")]
    intake.receive(())
    exchange.receive = lambda: ([exchange.received(_name("honest").hex(), rollout_group("honest"))], {})  # type: ignore[method-assign]
    intake.receive(())
    assert verifier.waiting == [(_name("honest").hex(), "honest")] and choice.arrived == [_name("honest").hex()]
    assert len(intake) == 3 and ledger.snapshot()["dropped"] == {}, "those that wait keep their places"


def test_what_a_banned_author_offered_is_neither_fetched_nor_waited_for() -> None:
    intake, exchange, choice, _ = _pulling("banned", "other")
    exchange.quarantined = {"banned"}
    choice.chooses = False
    exchange.offered = [
        OfferedGroup(author, Offer(bytes(16), name, 3_000, "gcd", 2, 0.5, 0.5, bytes(8), 60))
        for author, name in (("banned", bytes(16)), ("other", bytes([1] * 16)))
    ]
    intake.receive(())
    assert choice.outcomes == [(_key("banned"), False)]
    choice.chooses = True
    intake.receive(())
    assert [each.peer_id for each in exchange.pulled] == ["banned", "other", "other"]


def test_another_s_content_on_offer_under_many_names_keeps_nobody_from_its_author_s_offer() -> None:
    """Whoever hears of an offer may say the same sooner than its author is heard, and give nothing."""
    exchange, choice, verifier, clock = FakeExchange(), Noting(), SlowVerifier(), Clock()
    intake = make_intake(exchange, verifier, choice, clock=clock)
    offer = Offer(bytes(16), _name("honest"), 3_000, "gcd", 2, 0.5, 0.5, bytes(8), 60)
    exchange.offered = [OfferedGroup(author, offer) for author in ("thief", "other thief", "honest", "late thief")]
    intake.receive(())
    assert [each.peer_id for each in exchange.pulled] == ["thief", "other thief", "honest", "late thief"]
    clock.now = 1.0
    exchange.receive = lambda: ([exchange.received(_name("honest").hex(), rollout_group("honest"))], {})  # type: ignore[method-assign]
    intake.receive(())
    assert verifier.waiting == [(_name("honest").hex(), "honest")] and choice.arrived == [_name("honest").hex()]
    assert len(choice.outcomes) == 3 and not any(usable for _, usable in choice.outcomes)
    exchange.receive = lambda: ([], {})  # type: ignore[method-assign]
    exchange.offered = [OfferedGroup("late thief", offer)]
    intake.receive(())
    assert len(exchange.pulled) == 4, "what is here is not fetched again"


def test_commitments_are_known_before_groups_are_looked_at_and_no_larger_than_groups_may_be() -> None:
    exchange, told = FakeExchange(), list[str]()

    class Listening(Selection):
        max_completions = 2

        def skip_reason(self, group: RolloutGroup) -> Reason | None:
            told.append(f"group of {group.peer_id}")
            return None

    class Heard(Copies):
        def note(self, heard: Commitment, account: str = "") -> None:
            told.append(f"{heard.peer_id} on the account {account}")

        def judge(self, group: RolloutGroup, now: float) -> Reason | None:
            return None

    exchange.inbox = [rollout_group("author", 1)]
    small, large = rollout_group("small", 1, ("1", "2")), rollout_group("large", 1, ("1", "2", "3"))
    exchange.committed = [Commitment(group.peer_id, commitment(group), 1.0) for group in (small, large)]
    intake = make_intake(exchange, SlowVerifier(), Listening(), copies=Heard())
    intake.receive(())
    assert told == ["small on the account small", "group of author"]
