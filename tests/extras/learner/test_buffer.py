"""The replay buffer: what a learner may still learn from, whatever comes and whenever."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from swarm.extras.learner.buffer import ReplayBuffer
from swarm.following import publish_every
from swarm.protocols import NEWCOMERS
from swarm.received.authors import AuthorOf, itself
from swarm.types import Completion, GradedGroup, PolicyId, ReceivedGroup, VersionSpan
from tests.example_groups import graded


def sampled(index: int, *versions: int, size: int = 2) -> GradedGroup:
    """A group of which each completion's tokens are of `versions`, one each."""
    group = graded(index=index, rewards=(1.0,) + (0.0,) * (size - 1))
    spans = tuple(VersionSpan(version, 1) for version in versions)
    completions = tuple(
        Completion("text", "stop", tuple(range(len(spans))), (-1.0,) * len(spans), spans) for _ in range(size)
    )
    return replace(group, group=replace(group.group, completions=completions))


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    group = sampled(0, 5, 3, 7).group
    assert (group.oldest_version, group.newest_version) == (3, 7)
    plain = graded(policy=PolicyId("tiny", "", 4)).group
    assert (plain.oldest_version, plain.newest_version) == (4, 4)


def test_admissible_up_to_s_and_discarded_beyond() -> None:
    buffer = ReplayBuffer(max_staleness=2, max_groups=10)
    assert not buffer.admit(ReceivedGroup("three", sampled(3, 3)), 5, 0.0)
    assert buffer.admit(ReceivedGroup("two", sampled(2, 2)), 5, 0.0) == Counter(stale_version=1)
    assert not buffer.admit(ReceivedGroup("mixed", sampled(1, 3, 5)), 5, 0.0)
    assert not buffer.admit(ReceivedGroup("four", sampled(4, 4)), 5, 0.0)
    assert buffer.advance(6) == Counter(stale_version=2), "one old token is enough"
    assert [group.group.oldest_version for group in buffer.take(6, 100)] == [4]


def test_strictly_on_policy_is_the_same_with_zero() -> None:
    buffer = ReplayBuffer(max_staleness=0, max_groups=10)
    buffer.admit(ReceivedGroup("now", sampled(1, 7)), 7, 0.0)
    assert buffer.admit(ReceivedGroup("before", sampled(2, 6, 7)), 7, 0.0) == Counter(stale_version=1)
    assert len(buffer.take(7, 100)) == 1
    assert publish_every(0) == 1


def test_the_oldest_version_is_taken_first_and_leaves_first() -> None:
    buffer = ReplayBuffer(max_staleness=9, max_groups=3)
    for index, version in enumerate((5, 3, 4)):
        buffer.admit(ReceivedGroup(str(version), sampled(index, version)), 5, 0.0)
    assert buffer.admit(ReceivedGroup("new", sampled(9, 5)), 5, 0.0) == Counter(buffer_full=1)
    assert "3" not in buffer
    assert [group.group.oldest_version for group in buffer.take(5, 4)] == [4, 5], "two groups of two completions"
    assert "4" in buffer and len(buffer) == 1
    with pytest.raises(ValueError, match="already in the buffer"):
        buffer.admit(ReceivedGroup("4", sampled(2, 4)), 5, 0.0)


def test_a_restart_finds_what_no_finished_update_has_used() -> None:
    buffer = ReplayBuffer(max_staleness=3, max_groups=10)
    for index in range(4):
        buffer.admit(ReceivedGroup(str(index), sampled(index, index)), 3, 0.0)
    buffer.take(3, 2)
    after = ReplayBuffer(max_staleness=3, max_groups=10)
    after.restore(buffer.dump())
    assert after.num_unused() == buffer.num_unused() == 4
    buffer.give_back()
    assert buffer.take(3, 100) == after.take(3, 100)
    assert len(buffer.settle()) == 4 and buffer.dump() == []


def _from(peer_id: str, index: int, version: int = 0, size: int = 4) -> GradedGroup:
    group = sampled(index, version, size=size)
    return replace(group, group=replace(group.group, peer_id=peer_id))


def _filled(max_groups: int = 100, author_of: AuthorOf = itself, **counts: int) -> ReplayBuffer:
    """A buffer into which workers have just delivered so many groups of four."""
    buffer = ReplayBuffer(max_staleness=9, max_groups=max_groups)
    for peer_id, count in counts.items():
        for index in range(count):
            buffer.admit(ReceivedGroup(f"{peer_id}-{index}", _from(peer_id, index)), 0, 0.0, author_of)
    return buffer


def _newcomers(*peer_ids: str) -> AuthorOf:
    return lambda peer_id: NEWCOMERS if peer_id in peer_ids else peer_id


def _given(groups: Iterable[GradedGroup]) -> Counter[str]:
    return Counter(each.group.peer_id for each in groups)


def test_no_worker_gives_more_than_its_fair_part_while_others_have_groups() -> None:
    assert _given(_filled(fast=50, slow=9, other=9).take(0, 24)) == {"fast": 2, "slow": 2, "other": 2}
    assert _given(_filled(fast=50, slow=1).take(0, 24)) == {"fast": 5, "slow": 1}, "what is left goes to who has more"
    assert _given(_filled(alone=50).take(0, 24)) == {"alone": 6}


def test_the_parts_are_of_the_whole_update_however_it_is_taken() -> None:
    buffer = _filled(fast=50)
    assert _given(buffer.take(0, 8)) == {"fast": 2}
    for index in range(9):
        buffer.admit(ReceivedGroup(f"slow-{index}", _from("slow", index, version=1)), 1, 0.0)
    assert _given(buffer.take(1, 16)) == {"fast": 1, "slow": 3}, "three of six for each"


def test_newcomers_together_have_one_part_and_wait_for_whoever_else_delivers() -> None:
    author_of = _newcomers("new", "newer")
    buffer = _filled(new=20, newer=20, worker=1)
    assert sum(count for name, count in _given(buffer.take(0, 24, 0.0, author_of)).items() if name != "worker") == 3
    assert buffer.take(0, 8, 1.0, author_of) == [], "the worker's next group is expected"
    assert _given(buffer.take(0, 8, 60.0, author_of)).total() == 2, "it has gone, and the learner must not starve"


def test_newcomers_among_themselves_are_authors_like_any_other() -> None:
    buffer = _filled(new=20, newer=20)
    assert _given(buffer.take(0, 24, 0.0, _newcomers("new", "newer"))) == {"new": 3, "newer": 3}


def test_a_flood_displaces_itself() -> None:
    author_of = _newcomers("one", "two", "three")
    buffer = _filled(12, author_of, slow=3, one=20, two=20, three=20)
    assert _given(held.graded for held in buffer.dump())["slow"] == 3 and len(buffer) == 12


def test_a_worker_s_groups_are_discarded_and_those_in_the_open_update_named() -> None:
    buffer = _filled(fraud=5, worker=5)
    buffer.take(0, 8)
    assert buffer.has_taken("fraud") and buffer.num_taken == 8
    buffer.give_back()
    assert buffer.refuse("fraud") == 5 and not buffer.has_taken("fraud")
    assert _given(held.graded for held in buffer.dump()) == {"worker": 5}
    assert buffer.refuse() == 5 and len(buffer) == 0


@given(
    st.integers(0, 4),
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from(["add", "take", "step", "stop"]), st.integers(0, 6)), max_size=60),
)
def test_every_group_is_used_once_discarded_or_held_and_never_used_too_old(
    max_staleness: int, max_groups: int, actions: list[tuple[str, int]]
) -> None:
    buffer = ReplayBuffer(max_staleness, max_groups)
    version, added, used, left = 6, 0, 0, Counter[str]()
    for action, number in actions:
        if action == "add":
            left += buffer.admit(ReceivedGroup(str(added), sampled(added, version - number, version)), version, 0.0)
            added += 1
            assert len(buffer) <= max_groups
        elif action == "take":
            taken = buffer.take(version, number)
            assert all(0 <= version - group.group.oldest_version <= max_staleness for group in taken)
        elif action == "step":
            used += len(buffer.settle())
            version += 1
            left += buffer.advance(version)
        else:
            buffer.give_back()
        assert added == used + left.total() + buffer.num_unused()


class SimulatedWorker:
    """Samples groups under the snapshot it has, over several ticks, and may be swapped, delayed, killed and reborn."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.version = 0
        self.down_until = 0
        self.running: list[list[int]] = []
        """Versions that sampled the tokens of each group so far."""

    def tick(self, now: int) -> list[tuple[int, ...]]:
        """The groups finished at this tick."""
        if now < self.down_until:
            return []
        if self.rng.random() < 0.002:
            self.down_until = now + self.rng.randint(1, 200)
            self.running = []
            return []
        if len(self.running) < 4:
            self.running.append([])
        for spans in self.running:
            spans.append(self.version)
        finished = [spans for spans in self.running if len(spans) > 3 and self.rng.random() < 0.3]
        self.running = [spans for spans in self.running if spans not in finished]
        return [tuple(spans) for spans in finished]


@pytest.mark.parametrize("max_staleness", [0, 1, 3, 6])
def test_ten_thousand_groups_with_delays_deaths_and_rejoins_stay_within_the_budget(max_staleness: int) -> None:
    rng = random.Random(max_staleness)
    workers = [SimulatedWorker(rng) for _ in range(12)]
    buffer = ReplayBuffer(max_staleness, max_groups=64)
    kappa = publish_every(max_staleness)
    arriving: dict[int, list[tuple[int, ...]]] = {}
    installing: dict[int, list[tuple[int, int]]] = {}
    version, added, used, worst, left = 0, 0, 0, 0, Counter[str]()
    now = 0
    while added < 10_000:
        now += 1
        for index, new in installing.pop(now, []):
            workers[index].version = max(workers[index].version, new)
        for worker in workers:
            for spans in worker.tick(now):
                arriving.setdefault(now + min(60, 1 + int(rng.lognormvariate(1, 1))), []).append(spans)
        for spans in arriving.pop(now, []):
            left += buffer.admit(ReceivedGroup(str(added), sampled(added, *spans)), version, now)
            added += 1
        if buffer.num_rollouts() < 16:
            continue
        lags = [version - group.group.oldest_version for group in buffer.take(version, 16)]
        worst = max(worst, *lags)
        used += len(buffer.settle())
        version += 1
        left += buffer.advance(version)
        if version % kappa == 0:
            for index in range(len(workers)):
                installing.setdefault(now + rng.randint(1, 20), []).append((index, version))
    assert worst <= max_staleness
    assert added == used + left.total() + buffer.num_unused()
    assert used > 0 and (max_staleness == 0 or worst > 0)
