"""The learner's loop with doubles for what is slow, and the real buffer, intake, ledger and memory transport."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarm.config import load_config
from swarm.errors import ConfigError, Interrupted, SnapshotError
from swarm.extras.learner import learner as learner_module
from swarm.extras.learner.learner import Learner, LearnerObserver, LearnerParts, LearnerTerms
from swarm.files import RandomAccessFile
from swarm.following import LearnerSettings
from swarm.types import (
    Commitment,
    Completion,
    Grade,
    GradedGroup,
    NetworkStatus,
    OfferedGroup,
    ReceivedGroup,
    Rejection,
    RolloutGroup,
    TaskRef,
    UpdateReport,
    VersionSpan,
)
from swarm.types.questions import stream_seed
from tests.example_groups import rollout_group
from tests.extras.learner.snapshot_files import content_of

SIZE = 4


def sent(index: int, *versions: int, good: bool = True, peer_id: str = "worker") -> RolloutGroup:
    """A group of four completions, of which one is right if the group is good, with a token of each version."""
    spans = tuple(VersionSpan(version, 1) for version in versions)
    ids = tuple(range(len(spans)))
    completions = tuple(
        Completion("right" if good and k == 0 else "wrong", "stop", ids, (-1.0,) * len(ids), spans) for k in range(SIZE)
    )
    return rollout_group(peer_id, index, completions=completions, rewards=(0.0,) * SIZE)


class FakeExchange:
    """Groups arrive when the test says so; waiting may make some arrive."""

    def __init__(self) -> None:
        self.inbox: list[RolloutGroup] = []
        self.on_wait: list[Sequence[RolloutGroup]] = []
        self.reports: Counter[str] = Counter()
        self.newcomers: set[str] = set()
        self.senders: set[str] = set()

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        raise AssertionError("a learner shares no groups")

    def receive(self) -> tuple[list[ReceivedGroup], dict[str, int]]:
        arrived, self.inbox = self.inbox, []
        self.senders |= {group.peer_id for group in arrived}
        return [ReceivedGroup(f"{group.peer_id}-{group.sequence}", group, group.peer_id) for group in arrived], {}

    def offers(self) -> list[OfferedGroup]:
        return []

    def commitments(self) -> list[Commitment]:
        return []

    def banned(self) -> frozenset[str]:
        return frozenset()

    def wait(self, timeout_s: float) -> bool:
        if self.on_wait:
            self.inbox += self.on_wait.pop(0)
        return bool(self.inbox)

    def account(self, peer_id: str) -> str:
        return peer_id

    def report(self, peer_id: str, outcome: str, verify_s: float = 0.0) -> None:
        self.reports[outcome] += 1

    def took(self, num_groups: int, num_wanted: int) -> None:
        pass

    def established(self) -> frozenset[str]:
        return frozenset(self.senders - self.newcomers)

    def status(self) -> NetworkStatus:
        return NetworkStatus("run", (), None)


class FakeVerifier:
    def __init__(self) -> None:
        self.done: list[tuple[str, Grade | Rejection]] = []

    def submit(self, key: str, ref: TaskRef, texts: Sequence[str], sender: str = "") -> None:
        self.done.append((key, Grade("prompt", tuple(float(text == "right") for text in texts))))

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        done, self.done = self.done, []
        return done


class FakeUpdater:
    """Notes in what pieces each update came, and how old they were."""

    max_chars = 10_000

    def __init__(self) -> None:
        self.version = 0
        self.open: list[int] = []
        self.updates: list[list[int]] = []
        self.worst = 0
        self.skip = False
        self.full = False
        """The disk."""

    def refusal(self, group: GradedGroup) -> str | None:
        return None

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return [reward - sum(rewards) / len(rewards) for reward in rewards]

    def accumulate(self, groups: Sequence[GradedGroup]) -> None:
        self.open.append(len(groups))
        self.worst = max(self.worst, *(self.version - group.group.oldest_version for group in groups))

    def apply(self) -> UpdateReport:
        self.updates.append(self.open)
        self.open = []
        self.version += not self.skip
        return UpdateReport(skipped=self.skip)

    def abandon(self) -> None:
        self.open = []

    def snapshot(self, path: Path) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_bytes(str(self.version).encode())


class FakeAuditor:
    def __init__(self) -> None:
        self.kept: list[int] = []
        self.liars: set[str] = set()

    def keep(self, version: int, snapshot: RandomAccessFile) -> None:
        self.kept.append(version)

    def verdict(self, group: GradedGroup) -> str | None:
        return "wrong_logprobs" if group.group.peer_id in self.liars else None


class Bench:
    """A learner and its doubles; the publisher is the list of versions published."""

    def __init__(self, **settings: object) -> None:
        self.exchange, self.updater, self.auditor = FakeExchange(), FakeUpdater(), FakeAuditor()
        self.published: list[tuple[int, bytes]] = []
        self.delivered: Counter[str] = Counter()
        self.stopped = False
        self.failure = ""
        terms = LearnerTerms(
            learner=LearnerSettings(**{"rollouts_per_step": 2 * SIZE, **settings}), max_pending_per_peer=100
        )
        parts = LearnerParts(
            updater=self.updater,
            verifier=FakeVerifier(),
            exchange=self.exchange,
            publisher=self,
            auditor=self.auditor,
            folder=Path(tempfile.gettempdir()),
        )
        bench = self

        class Observer(LearnerObserver):
            def delivered(self, peer_id: str, rollouts: int) -> None:
                bench.delivered.update({peer_id: rollouts})

            def cancelled(self) -> bool:
                return bench.stopped

        self.learner = Learner(terms, parts, Observer())

    def publish(self, version: int, snapshot: RandomAccessFile) -> None:
        self.published.append((version, content_of(snapshot)))
        snapshot.path.unlink()

    def check(self) -> None:
        if self.failure:
            raise SnapshotError(self.failure)

    @property
    def dropped(self) -> dict[str, int]:
        return self.learner.ledger.snapshot()["dropped"]

    def balanced(self) -> bool:
        learner = self.learner
        return learner.ledger.unaccounted(learner.buffer.num_unused(), learner.num_pending) == 0


def test_an_update_begins_with_the_first_micro_batch_and_ends_with_the_last() -> None:
    bench = Bench(micro_batch_rollouts=SIZE)
    bench.exchange.on_wait = [[], [sent(1, 0)], [], [], [sent(2, 0)]]
    report = bench.learner.run_step()
    assert bench.updater.updates == [[1, 1]], "the first group's part was there before the second had come"
    assert (report.num_groups, report.num_rollouts, report.version) == (2, 2 * SIZE, 1)
    assert report.timings["wait"] > 0
    assert bench.balanced()


def test_a_step_says_what_the_groups_it_trained_on_look_like() -> None:
    """By the names and the code of a peer's round, with this node's rewards: the workers' own are all 0 here."""
    bench = Bench(micro_batch_rollouts=SIZE)
    cut_off = sent(2, 0, 0)
    cut_off = replace(cut_off, completions=tuple(replace(each, finish_reason="length") for each in cut_off.completions))
    bench.exchange.on_wait = [[sent(1, 0)], [cut_off], [sent(3, 0)]]
    assert bench.learner.run_step().figures == {
        "reward/std": pytest.approx(0.75**0.5 / 2),
        "frac_reward_zero_std": 0.0,
        "completions/mean_length": 1.5,
        "completions/max_length": 2.0,
        "completions/clipped_ratio": 0.5,
    }


def test_what_is_there_at_once_is_taken_at_once_and_the_rest_stays() -> None:
    bench = Bench()
    bench.exchange.inbox = [sent(index, 0) for index in range(5)]
    bench.learner.run_step()
    assert bench.updater.updates == [[2]]
    assert len(bench.learner.buffer) == 3
    bench.learner.run_step()
    assert bench.learner.ledger.snapshot()["used_external"] == 4 and bench.balanced()


@pytest.mark.parametrize(("max_staleness", "period"), [(0, 1), (1, 1), (2, 1), (3, 2), (6, 5)])
def test_the_budget_decides_how_often_is_published_and_what_is_too_old(max_staleness: int, period: int) -> None:
    bench = Bench(max_staleness=max_staleness)
    bench.learner.publish()
    for step in range(10):
        newest = bench.published[-1][0]
        bench.exchange.inbox = [sent(100 * step + k, version) for k, version in enumerate([0, newest, newest, newest])]
        bench.learner.run_step()
    assert [version for version, _ in bench.published] == [0, *range(period, 11, period)]
    assert bench.published[-1][1] == str(bench.published[-1][0]).encode(), "the policy as it was then"
    assert bench.auditor.kept == [version for version, _ in bench.published]
    assert bench.updater.worst <= max_staleness
    assert bench.dropped["stale_version"] > 0 and bench.balanced()


def test_strictly_on_policy_uses_only_its_own_version() -> None:
    bench = Bench(max_staleness=0)
    bench.exchange.inbox = [sent(index, 0) for index in range(4)]
    bench.learner.run_step()
    assert bench.dropped == {"stale_version": 2}, "what the update did not need is too old after it"
    bench.exchange.inbox = [sent(10, 0, 1), sent(11, 1), sent(12, 1)]
    bench.learner.run_step()
    assert bench.dropped == {"stale_version": 3}, "one token of the version before is one too many"
    assert bench.updater.worst == 0 and bench.balanced()


def test_what_cannot_teach_is_counted_and_told_to_the_accounts() -> None:
    bench = Bench()
    bench.auditor.liars = {"liar"}
    bench.exchange.inbox = [
        sent(1, 0, good=False),
        sent(2, 5),
        sent(3, 0, peer_id="liar"),
        sent(4, 0),
        sent(5, 0),
    ]
    bench.learner.run_step()
    assert bench.dropped == {"zero_advantage": 1, "wrong_version": 1, "wrong_logprobs": 1}
    expected = {"zero_advantage": 1, "wrong_version": 1, "wrong_logprobs": 1, "informative": 2, "used": 2}
    assert bench.exchange.reports == expected
    assert bench.delivered == {"worker": 2 * SIZE}
    assert bench.balanced()


def test_a_stop_in_the_middle_of_an_update_loses_no_group() -> None:
    bench = Bench(micro_batch_rollouts=SIZE)
    bench.exchange.inbox = [sent(1, 0)]
    bench.stopped = True
    with pytest.raises(Interrupted):
        bench.learner.run_step()
    assert bench.updater.open == [] and bench.learner.buffer.num_unused() == 1
    bench.stopped = False
    bench.exchange.inbox = [sent(2, 0)]
    bench.learner.run_step()
    assert bench.learner.ledger.snapshot()["used_external"] == 2 and bench.balanced()


def test_a_learner_whose_snapshots_reach_nobody_waits_for_nothing() -> None:
    bench = Bench(micro_batch_rollouts=SIZE)
    bench.exchange.inbox = [sent(1, 0)]
    bench.exchange.wait = fail_meanwhile(bench)  # type: ignore[method-assign]
    for _ in range(2):  # while it waits, and before a step
        with pytest.raises(SnapshotError, match="the disk is gone"):
            bench.learner.run_step()
        assert bench.updater.open == [] and bench.learner.buffer.num_unused() == 1


def fail_meanwhile(bench: Bench) -> Callable[[float], bool]:
    def wait(timeout_s: float) -> bool:
        assert not bench.failure, "it waits no longer"
        bench.failure = "the disk is gone"
        return False

    return wait


def test_an_update_that_was_not_taken_changes_no_version_and_publishes_nothing() -> None:
    bench = Bench(max_staleness=0)
    bench.updater.skip = True
    bench.exchange.inbox = [sent(1, 0), sent(2, 0)]
    report = bench.learner.run_step()
    assert report.update.skipped and report.version == 0 and bench.published == []
    assert bench.dropped == {"update_skipped": 2} and bench.balanced()


def test_a_bounded_buffer_keeps_the_freshest() -> None:
    bench = Bench(buffer_groups=2, rollouts_per_step=100 * SIZE)
    bench.exchange.inbox = [replace(sent(index, 0), sequence=index) for index in range(5)]
    bench.updater.version = 0
    bench.learner.receive()
    assert bench.dropped == {"buffer_full": 3} and bench.balanced()


def test_a_buffer_smaller_than_a_micro_batch_is_trained_on_when_it_is_full() -> None:
    bench = Bench(buffer_groups=2, micro_batch_rollouts=4 * SIZE, rollouts_per_step=4 * SIZE)
    groups = [sent(index, 0) for index in range(4)]

    def wait(timeout_s: float) -> bool:
        bench.stopped = not groups  # rather than wait for ever
        bench.exchange.inbox += groups[:1]
        del groups[:1]
        return True

    bench.exchange.wait = wait
    bench.learner.run_step()
    assert bench.updater.updates == [[2, 2]] and bench.dropped == {} and bench.balanced()


def test_a_fraud_s_groups_leave_the_buffer_and_the_open_update() -> None:
    bench = Bench(micro_batch_rollouts=SIZE, rollouts_per_step=6 * SIZE)
    bench.exchange.inbox = [sent(number, 0, peer_id="liar") for number in (1, 2)]
    bench.exchange.on_wait = [[sent(3, 0, peer_id="liar")], [sent(number, 0) for number in range(4, 10)]]

    def verdict(group: GradedGroup) -> str | None:
        return "unlike_samples" if group.group.sequence == 3 else None

    bench.auditor.verdict = verdict  # type: ignore[method-assign]
    bench.learner.run_step()
    assert bench.updater.updates == [[6]], "the open update began anew, without its groups"
    assert bench.dropped == {"unlike_samples": 3} and bench.exchange.reports["unlike_samples"] == 1
    assert bench.balanced()


def test_groups_of_workers_that_are_not_listed_are_refused_ungraded() -> None:
    bench = Bench(workers=("worker",))
    bench.exchange.inbox = [sent(1, 0, peer_id="stranger"), sent(2, 0), sent(3, 0)]
    bench.learner.run_step()
    assert bench.dropped == {"not_invited": 1} and bench.learner.ledger.snapshot()["checked"] == 2
    assert bench.delivered == {"worker": 2 * SIZE} and bench.balanced()


@pytest.mark.parametrize("copy_comes_first", [False, True])
def test_another_worker_s_groups_under_its_own_name_are_worth_nothing(copy_comes_first: bool) -> None:
    """They were sampled, and their log-probabilities are true: no spot check finds them."""
    bench = Bench(buffer_groups=100, rollouts_per_step=3 * SIZE)
    groups = [sent(index, 0) for index in range(4)]
    groups = [replace(each, question=replace(each.question, seed=stream_seed("worker"))) for each in groups]
    copies = [replace(each, peer_id=f"thief {name}") for each in groups for name in range(3)]
    bench.exchange.inbox = [groups[0], *copies, *groups[1:]] if copy_comes_first else [*groups, *copies]
    bench.learner.run_step()
    assert bench.delivered == {"worker": 4 * SIZE} and bench.dropped == {"repeated": 12}


def _surprising(index: int, peer_id: str, first: float) -> RolloutGroup:
    """A group of two right ones, whose first token has this log-probability in one."""
    group = sent(index, *[0] * 12, peer_id=peer_id)
    texts = ("right", "right", "wrong", "wrong")
    rng = random.Random(index)
    logprobs = [tuple(-rng.random() for _ in each.token_ids) for each in group.completions]
    logprobs[0] = (first, *logprobs[0][1:])
    completions = [
        replace(each, text=text, logprobs=values)
        for each, text, values in zip(group.completions, texts, logprobs, strict=True)
    ]
    return replace(group, completions=tuple(completions))


def test_what_no_other_worker_would_write_is_left_out_of_a_newcomer_s_groups() -> None:
    bench = Bench(buffer_groups=100)
    bench.exchange.newcomers = {"new"}
    bench.exchange.inbox = [_surprising(index, "worker", -0.5) for index in range(20)]
    bench.exchange.inbox += [_surprising(100, "new", -60.0), _surprising(101, "new", -0.5)]
    bench.learner.receive()
    kept = {held.graded.group.sequence: len(held.graded.rewards) for held in bench.learner.buffer.dump()}
    assert kept == {**dict.fromkeys(range(20), SIZE), 100: SIZE - 1, 101: SIZE}


def test_without_other_workers_nothing_is_improbable() -> None:
    bench = Bench(buffer_groups=100)
    bench.exchange.inbox = [_surprising(index, "worker", -0.5) for index in range(20)]
    bench.exchange.inbox += [_surprising(100, "worker", -60.0)]
    bench.learner.receive()
    assert len(bench.learner.buffer) == 21 and bench.dropped == {}


def test_who_harmed_a_learner_is_charged_and_nothing_more_of_what_it_holds_is_learned() -> None:
    bench = Bench()
    bench.exchange.inbox = [sent(index, 0) for index in range(5)]
    assert bench.learner.run_step().senders == ("worker",) * 2
    bench.learner.distrust(["worker"])
    assert bench.exchange.reports["harmful"] == 1 and bench.dropped == {"harmful": 3}
    assert len(bench.learner.buffer) == 0 and bench.balanced()


def test_names_that_are_found_to_be_frauds_one_after_another_stop_no_update() -> None:
    bench = Bench(micro_batch_rollouts=SIZE, rollouts_per_step=6 * SIZE)
    names = [f"fraud-{number}" for number in range(5)]
    bench.exchange.on_wait = [
        [sent(2 * number + turn, 0, peer_id=name)] for number, name in enumerate(names) for turn in (0, 1)
    ]
    bench.exchange.on_wait += [[sent(number, 0)] for number in range(20, 26)]
    bench.auditor.verdict = lambda group: "unlike_samples" if group.group.sequence in (1, 3, 5, 7, 9) else None  # type: ignore[method-assign]
    bench.learner.run_step()
    (update,) = bench.updater.updates
    assert sum(update) == 6 and bench.dropped["unlike_samples"] == 6, (
        "the first one's groups, and what showed the others"
    )
    assert bench.balanced()


@pytest.mark.parametrize(("max_staleness", "period"), [(0, 2), (3, 5)])
def test_a_period_in_which_every_worker_would_pause_is_refused(max_staleness: int, period: int) -> None:
    values = {"max_staleness": max_staleness, "publish_every": period}
    with pytest.raises(ConfigError, match=f"publish_every must be at most {max_staleness + 1}.*got {period}"):
        load_config(None, {"learner": values})


def test_with_the_longest_period_that_is_accepted_workers_within_the_budget_keep_the_learner_going() -> None:
    bench = Bench(max_staleness=3, publish_every=4)
    bench.learner.publish()
    for step in range(12):
        newest = bench.published[-1][0]
        assert bench.updater.version - newest <= 3, "a worker with the newest snapshot does not pause"
        bench.exchange.inbox = [sent(10 * step + k, newest) for k in range(2)]
        bench.learner.run_step()
    assert [version for version, _ in bench.published] == [0, 4, 8, 12]


def test_a_full_disk_delays_a_snapshot_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(learner_module, "RETRY_S", 0.0)
    bench = Bench(max_staleness=0)
    bench.updater.full = True
    bench.learner.publish()
    assert not bench.published and not bench.auditor.kept
    bench.exchange.on_wait = [[], [], [sent(1, 0), sent(2, 0)]]
    wait = bench.exchange.wait

    def room_after_two_tries(timeout_s: float) -> bool:
        bench.updater.full = len(bench.exchange.on_wait) > 2
        return wait(timeout_s)

    monkeypatch.setattr(bench.exchange, "wait", room_after_two_tries)
    bench.learner.run_step()
    assert [version for version, _ in bench.published] == [0, 1] == bench.auditor.kept
    assert caplog.text.count("snapshots cannot be written: [Errno 28] No space left on device; trying again") == 1
