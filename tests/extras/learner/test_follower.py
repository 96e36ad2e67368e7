"""The worker's loop with doubles: what it installs, when it goes on, when it pauses, what it sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import pytest

from swarm.errors import EngineError, SnapshotError, WeightsRefused
from swarm.extras.learner.follower import Follower, SamplingPlan, SnapshotInstaller, WorkerGroups
from swarm.groups.building import Member, OwnGroups
from swarm.protocols import Turns
from swarm.types import (
    Answers,
    Completion,
    Grade,
    NetworkStatus,
    Orders,
    PolicyId,
    Question,
    Rejection,
    RolloutGroup,
    Sampling,
    TaskRef,
    VersionSpan,
)
from tests.example_groups import reference

GROUP_SIZE = 2


class FakeFeed:
    def __init__(self) -> None:
        self.complete: tuple[int, bytes] | None = None
        self.known: int | None = None

    def offer(self, version: int, snapshot: bytes = b"weights") -> None:
        self.complete, self.known = (version, snapshot), version

    def newest(self) -> tuple[int, bytes] | None:
        complete, self.complete = self.complete, None
        return complete

    def announced(self) -> int | None:
        return self.known


class FakeEngine:
    """Two tokens a completion; what the test does between two groups happens between two tokens of the next one."""

    def __init__(self) -> None:
        self.version = -1
        self.routing = b""
        self.broken: set[int] = set()
        self.refused: set[int] = set()
        self.between: list[object] = []
        self.asked: list[tuple[str, ...]] = []
        self.calls = 0

    def check(self, sampling: Sampling) -> None:
        pass

    def generate(self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        raise AssertionError("a worker streams")

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int, turns: Turns
    ) -> Iterator[tuple[int, Answers]]:
        self.calls += 1
        first = self.version
        while taken := turns.next_turns(wait=True):
            self.asked.append(tuple(str(turn.context) for turn in taken))
            for turn in taken:
                if self.version in self.broken:
                    raise EngineError("logits that are not finite")
                spans = (VersionSpan(first, 1), VersionSpan(self.version, 1))
                last = turn.episode % GROUP_SIZE == GROUP_SIZE - 1
                text = "wrong" if last else "right"
                yield turn.episode, (Completion(text, "stop", (1, 2), (-1.0, -1.0), spans, self.routing),)
                if last:
                    first = self.version
                    if self.between:
                        self.between.pop(0)()

    def swap(self, weights: Mapping[str, object], version: int) -> None:
        if version in self.refused:
            raise WeightsRefused("of another model")
        self.version = version


class FakeVerifier:
    def __init__(self) -> None:
        self.drawn: list[tuple[int, int]] = []

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        self.drawn.append((start, count))
        return [Question(reference(index), f"question {index}") for index in range(start, start + count)]

    def begin_grading(self, ref: TaskRef, texts: Sequence[str]) -> Future[Grade | Rejection]:
        verdict: Future[Grade | Rejection] = Future()
        verdict.set_result(Grade("prompt", tuple(float(text == "right") for text in texts)))
        return verdict


class FakeExchange:
    def __init__(self) -> None:
        self.sent: list[RolloutGroup] = []

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        self.sent.append(group)
        return group

    def took(self, num_groups: int, num_wanted: int) -> None:
        pass

    def status(self) -> NetworkStatus:
        return NetworkStatus("run", (), None)


def _read(snapshot: bytes) -> dict[str, object]:
    if snapshot == b"garbage":
        raise SnapshotError("the snapshot cannot be read")
    return {}


class Bench:
    def __init__(
        self,
        max_staleness: int = 2,
        make: type[Follower] = Follower,
        first: int = 0,
        slots: int = 0,
        batches_a_call: int = 1,
    ) -> None:
        self.feed, self.engine, self.exchange = FakeFeed(), FakeEngine(), FakeExchange()
        self.verifier = FakeVerifier()
        self.wanted, self.finished, self.away, self.cancelled = True, False, False, False
        self.room = 1_000
        self.pauses: list[Callable[[], None]] = []
        self.learner_version = 0
        self.hidden = -1
        own = OwnGroups(Member("me", PolicyId("tiny", "hash", 0), Sampling()), self.exchange, token_ids=True)
        self.follower = make(
            SamplingPlan(1, 4, GROUP_SIZE, Sampling(), first, slots, batches_a_call),
            self.engine,
            self.verifier,
            SnapshotInstaller(self.engine, self.feed, _read),
            WorkerGroups(own, lambda ids, forced: self.hidden in ids, lambda: len(self.exchange.sent) < self.room),
            orders=lambda: self.orders(max_staleness),
            cancelled=lambda: self.cancelled,
            pause=lambda: self.pauses.pop(0)(),
        )

    def orders(self, max_staleness: int) -> Orders | None:
        return None if self.away else Orders(self.learner_version, max_staleness, self.wanted, self.finished)

    def make_room(self) -> None:
        self.room += 1

    def install(self, version: int) -> None:
        self.feed.offer(version)
        self.follower.snapshots.install()

    @property
    def spans(self) -> list[list[int]]:
        return [[span.version for span in group.completions[0].versions] for group in self.exchange.sent]

    @property
    def local(self) -> dict[str, int]:
        return self.follower.groups.ledger.snapshot()["local"]


def test_without_a_snapshot_it_waits_and_with_one_it_sends_what_the_learner_needs() -> None:
    bench = Bench()
    assert bench.follower.lagging and not bench.follower.snapshots.install()
    bench.feed.offer(3)
    assert bench.follower.snapshots.install() and not bench.follower.lagging
    report = bench.follower.run_batch()
    assert (report.num_groups, report.reward, report.num_tokens) == (4, 0.5, 16)
    assert (report.figures["reward/std"], report.figures["completions/mean_length"]) == (0.5, 2.0)
    group = bench.exchange.sent[0]
    assert group.policy.version == 3 and group.rewards == (1.0, 0.0)
    assert all(c.token_ids and c.logprobs and c.versions for c in group.completions)
    assert len({group.sequence for group in bench.exchange.sent}) == 4
    bench.follower.run_batch()
    assert bench.verifier.drawn == [(0, 4), (4, 4)], "no question twice"
    later = Bench(first=1_000)
    later.install(3)
    later.follower.run_batch()
    assert later.verifier.drawn == [(1_000, 4)], "another process begins elsewhere in the stream"


def test_the_next_batch_s_questions_flow_into_slots_that_are_free_and_no_group_is_lost() -> None:
    bench = Bench(slots=4, batches_a_call=3)
    bench.install(3)
    reports = [bench.follower.run_batch() for _ in range(3)]
    assert [report.num_groups for report in reports] == [4, 4, 4]
    assert bench.verifier.drawn == [(0, 4), (4, 4), (8, 4)]
    assert len(bench.engine.asked[0]) == 6, "four slots, and a few that wait: three questions"
    assert len(bench.engine.asked) < 12 / 2 and bench.engine.calls == 1
    assert all(0 < report.figures["generate/slots_busy"] <= 1 for report in reports)
    assert [group.question.index for group in bench.exchange.sent] == [*range(12)]
    bench.follower.run_batch()
    assert bench.engine.calls == 2, "after so many batches a call ends"
    counts = bench.follower.groups.ledger.snapshot()
    assert counts["generated"] == counts["shared"] == 16 and counts["local"] == {}


def test_what_is_under_way_when_a_worker_stops_is_given_up_and_counted_and_the_stream_goes_on() -> None:
    bench = Bench(slots=8, batches_a_call=64)
    bench.install(3)
    bench.follower.run_batch()
    begun = len({name for names in bench.engine.asked for name in names})
    assert begun > 4
    bench.follower.stop()
    assert bench.local == {"not_finished": begun - 4}
    bench.follower.stop()
    assert bench.local == {"not_finished": begun - 4}, "nothing is left to stop"
    assert bench.follower.run_batch().num_groups == 4
    assert [group.question.index for group in bench.exchange.sent] == [*range(4), *range(begun, begun + 4)]


def test_without_room_for_its_groups_it_samples_nothing_and_with_room_it_goes_on() -> None:
    bench = Bench()
    bench.install(3)
    bench.room = 1
    sampled: list[int] = []
    bench.engine.between = [lambda: sampled.append(1)] * 4
    seen: list[int] = []
    bench.pauses = [lambda: seen.append(len(sampled)), lambda: (seen.append(len(sampled)), bench.make_room())]
    bench.pauses += [bench.make_room] * 2
    report = bench.follower.run_batch()
    assert seen == [1, 1], "the engine stands still after the second group"
    assert report.num_groups == len(bench.exchange.sent) == 4 and bench.pauses == []
    assert not bench.follower.groups.held_up


def test_without_room_a_batch_still_ends_when_it_is_not_wanted_and_its_groups_are_kept() -> None:
    bench = Bench()
    bench.install(3)
    bench.room = 0
    bench.pauses = [lambda: None, lambda: setattr(bench, "wanted", False)]
    assert bench.follower.run_batch().num_groups == 1
    assert bench.exchange.sent == [] and bench.follower.groups.held_up
    assert bench.local == {"not_finished": 3}
    bench.make_room()
    bench.follower.send()
    assert len(bench.exchange.sent) == 1 and not bench.follower.groups.held_up


def test_what_went_stale_while_there_was_no_room_is_not_sent() -> None:
    bench = Bench()
    bench.install(3)
    bench.room = 0
    bench.pauses = [lambda: setattr(bench, "learner_version", 6)]
    bench.follower.run_batch()
    bench.make_room()
    bench.follower.send()
    assert bench.exchange.sent == [] and bench.local["stale_version"] == 1


def test_routing_stays_here_for_no_receiver_takes_it() -> None:
    bench = Bench()
    bench.engine.routing = b"experts"
    bench.install(3)
    bench.follower.run_batch()
    sent = [completion for group in bench.exchange.sent for completion in group.completions]
    assert len(sent) == 8
    assert all(c.routing == b"" and c.token_ids and c.logprobs and c.versions for c in sent)


def test_what_its_text_does_not_show_is_not_sent() -> None:
    bench = Bench()
    bench.hidden = 2
    bench.install(3)
    bench.follower.run_batch()
    assert bench.exchange.sent == [] and bench.local == {"hidden_tokens": 4}


def test_it_pauses_when_the_learner_is_ahead_by_its_own_word_and_has_announced_nothing_newer() -> None:
    bench = Bench(max_staleness=2)
    bench.install(3)
    bench.learner_version = 5
    assert not bench.follower.lagging
    bench.learner_version = 6
    assert bench.follower.lagging
    bench.follower.run_batch()
    assert bench.exchange.sent == [] and bench.local["stale_version"] == 1, "what was begun ends, and nothing is sent"


def test_a_new_snapshot_enters_between_two_tokens_and_the_completion_goes_on() -> None:
    bench = Bench()
    bench.install(3)

    def arrive() -> None:
        bench.install(4)

    # It enters while the second group is at its first token.
    bench.engine.between = [arrive]
    plain = bench.engine.stream
    bench.engine.stream = lambda *arguments: _begun_before(bench.engine, plain(*arguments))
    bench.follower.run_batch()
    assert bench.spans == [[3, 3], [3, 4], [4, 4], [4, 4]]
    assert [group.oldest_version for group in bench.exchange.sent] == [3, 3, 4, 4]


def _begun_before(engine: FakeEngine, stream: Iterator[tuple[int, Answers]]) -> Iterator[tuple[int, Answers]]:
    """The same groups, the first token of each sampled before the test's doings, the second after."""
    before = engine.version
    for name, answers in stream:
        assert not isinstance(answers, Rejection)
        now = engine.version
        spans = (VersionSpan(before, 1), VersionSpan(now, 1))
        yield name, tuple(Completion(c.text, "stop", c.token_ids, c.logprobs, spans) for c in answers)
        if name % GROUP_SIZE == GROUP_SIZE - 1:
            before = now


def test_it_goes_on_under_the_old_snapshot_while_the_new_one_arrives_and_pauses_beyond_the_budget() -> None:
    bench = Bench(max_staleness=2)
    bench.install(3)
    bench.feed.known = 5
    assert not bench.follower.lagging
    assert bench.follower.run_batch().num_groups == 4 and len(bench.exchange.sent) == 4
    bench.feed.known = 6
    assert bench.follower.lagging
    bench.install(6)
    assert not bench.follower.lagging


def test_a_batch_ends_early_when_it_could_not_be_used_or_is_not_wanted() -> None:
    bench = Bench(max_staleness=0)
    bench.install(3)
    bench.engine.between = [lambda: setattr(bench.feed, "known", 4)]
    assert bench.follower.run_batch().num_groups == 2
    assert bench.local["not_finished"] == 2
    assert bench.local["stale_version"] == 1, "the second one was finished too late to be sent"
    bench.install(4)
    bench.wanted = False
    assert bench.follower.run_batch().num_groups == 1


@pytest.mark.parametrize("state", ["finished", "away", "cancelled"])
def test_a_batch_ends_when_the_learner_has_finished_or_is_away_or_the_node_stops(state: str) -> None:
    bench = Bench()
    bench.install(3)
    assert bench.follower.wanted
    setattr(bench, state, True)
    assert not bench.follower.wanted and bench.follower.run_batch().num_groups == 1


def test_a_snapshot_that_cannot_generate_is_taken_back() -> None:
    bench = Bench()
    bench.install(3)
    bench.follower.run_batch()
    bench.engine.broken = {4}
    bench.install(4)
    bench.follower.run_batch()
    assert (bench.follower.snapshots.version, bench.engine.version, bench.follower.snapshots.num_refused) == (3, 3, 1)
    assert bench.follower.run_batch().num_groups == 4


def test_a_first_snapshot_that_cannot_generate_is_dropped_and_the_next_one_waited_for() -> None:
    bench = Bench()
    bench.engine.broken = {3}
    bench.install(3)
    assert bench.follower.run_batch().num_groups == 0
    assert bench.follower.lagging and bench.follower.snapshots.num_refused == 1
    assert bench.follower.snapshots.problem == (3, "the policy cannot generate with it")
    bench.install(4)
    assert bench.follower.run_batch().num_groups == 4


def test_once_the_new_one_has_generated_there_is_no_way_back() -> None:
    bench = Bench()
    for version in (3, 4):
        bench.install(version)
    bench.follower.run_batch()
    bench.engine.broken = {4}
    with pytest.raises(EngineError):
        bench.follower.run_batch()


@pytest.mark.parametrize("snapshot", [b"garbage", b"of another model"])
def test_a_snapshot_that_does_not_fit_changes_nothing(snapshot: bytes) -> None:
    bench = Bench()
    bench.install(3)
    bench.engine.refused = {4}
    bench.feed.offer(4, snapshot)
    assert not bench.follower.snapshots.install()
    assert (bench.follower.snapshots.version, bench.follower.snapshots.num_refused) == (3, 1)
    assert bench.follower.run_batch().num_groups == 4


def test_after_an_error_the_last_snapshot_that_has_generated_comes_back() -> None:
    bench = Bench(max_staleness=9)
    bench.install(3)
    bench.follower.run_batch()
    bench.engine.broken = {4, 5}
    for version in (4, 5):
        bench.install(version)
    bench.follower.run_batch()
    assert (bench.follower.snapshots.version, bench.engine.version) == (3, 3), "4 has never generated"
    assert bench.follower.run_batch().num_groups == 4


def test_a_newer_snapshot_that_came_between_an_error_and_the_way_back_stays() -> None:
    bench = Bench(max_staleness=9)
    bench.install(3)
    bench.follower.run_batch()
    bench.engine.broken = {4}
    bench.install(4)
    bench.engine.stream = _then(bench.engine.stream, lambda: bench.install(5))
    assert bench.follower.run_batch().num_groups == 0
    assert (bench.follower.snapshots.version, bench.engine.version) == (5, 5)
    assert bench.follower.run_batch().num_groups == 4


def _then(stream: Callable[..., Iterator[tuple[int, Answers]]], act: Callable[[], object]) -> Callable[..., object]:
    """A stream that acts when it fails, before anybody else sees the error."""

    def failing(*arguments: object) -> Iterator[tuple[int, Answers]]:
        try:
            yield from stream(*arguments)
        except EngineError:
            act()
            raise

    return failing


@pytest.mark.parametrize(("snapshot", "said"), [(b"garbage", "the snapshot cannot be read"), (b"", "of another model")])
def test_why_a_snapshot_was_refused_is_known_until_one_fits(snapshot: bytes, said: str) -> None:
    bench = Bench()
    bench.engine.refused = {4}
    bench.feed.offer(4, snapshot)
    bench.follower.snapshots.install()
    assert bench.follower.snapshots.problem == (4, said)
    bench.install(5)
    assert bench.follower.snapshots.problem is None


def test_the_staleness_bound_is_that_of_the_last_orders_while_the_learner_is_away() -> None:
    bench = Bench(max_staleness=2)
    bench.install(3)
    bench.room = 0
    bench.pauses = [lambda: setattr(bench, "away", True)]
    bench.follower.run_batch()
    bench.feed.known, bench.room = 5, 1_000
    bench.follower.send()
    assert bench.spans == [[3, 3]], "two versions old, as the learner allows"
    bench.feed.known = 6
    assert bench.follower.lagging


def test_before_the_first_orders_nothing_is_too_old_for_the_learner_judges_that_itself() -> None:
    bench = Bench(max_staleness=2)
    bench.away = True
    bench.install(3)
    bench.feed.known = 9
    assert not bench.follower.lagging and not bench.follower.wanted
