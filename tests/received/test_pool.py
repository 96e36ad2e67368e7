from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from swarm.reasons import Reason
from swarm.received.authors import AuthorOf, itself
from swarm.received.pool import Pool, PoolSettings
from swarm.types import GradedGroup, ReceivedGroup
from tests.example_groups import graded


def put(pool: Pool, name: str, group: GradedGroup, now: float, author_of: AuthorOf = itself) -> Counter[Reason]:
    return pool.admit(ReceivedGroup(name, group, arrived_at=now), author_of)


def held(pool: Pool) -> list[str]:
    return [each.content_id for each in pool]


def named(pool: Pool, names: Sequence[str]) -> list[ReceivedGroup]:
    return [each for each in pool if each.content_id in names]


def use(pool: Pool, names: Sequence[str]) -> int:
    return pool.use(named(pool, names))


def test_groups_leave_when_used_up() -> None:
    pool = Pool(PoolSettings(max_uses=2))
    put(pool, "a", graded(), 0)
    assert use(pool, ["a"]) == 1
    assert use(pool, ["a"]) == 0, "the second use is not a new group"
    assert len(pool) == 0


def test_the_oldest_makes_room_and_is_reported() -> None:
    pool = Pool(PoolSettings(max_groups=2, max_share_per_peer=1.0))
    left = [put(pool, name, graded(name), 0) for name in "abc"]
    assert left == [Counter(), Counter(), Counter(pool_full=1)]
    assert held(pool) == ["b", "c"]


def test_one_peer_cannot_fill_the_pool() -> None:
    pool = Pool(PoolSettings(max_groups=10, max_share_per_peer=0.3))
    put(pool, "friend", graded("friend"), 0)
    left = sum((put(pool, f"flood-{k}", graded("flooder", k), 0) for k in range(20)), Counter())
    assert left == Counter(peer_quota=17)
    assert "friend" in pool and len(pool) == 4


def test_groups_expire_unless_they_were_used() -> None:
    pool = Pool(PoolSettings(max_age_s=10, max_uses=2))
    put(pool, "old", graded(), 0)
    put(pool, "used", graded(index=1), 1)
    put(pool, "young", graded(index=2), 9)
    use(pool, ["used"])
    assert pool.expire(now=11.5) == Counter(expired=1), "a used group has taught; it is not counted as lost"
    assert held(pool) == ["young"]


def test_a_group_that_was_graded_late_expires_by_its_arrival() -> None:
    pool = Pool(PoolSettings(max_age_s=10))
    put(pool, "young", graded(), 8)
    put(pool, "old", graded(index=1), 0)
    assert pool.expire(now=11) == Counter(expired=1) and held(pool) == ["young"]


@pytest.mark.parametrize(("least", "wanted"), [(None, [0, 1, 2, 4, 8]), (0.0, [1, 2, 4]), (0.35, [2, 4]), (0.45, [4])])
def test_groups_need_more_spread_than_the_filter_s(least: float | None, wanted: list[int]) -> None:
    pool = Pool(PoolSettings(min_reward_std=least))
    assert [right for right in (0, 1, 2, 4, 8) if pool.wants([1.0] * right + [0.0] * (8 - right))] == wanted
    assert pool.wants([0.3, 0.1 + 0.2]) == (least is None)


def test_the_same_id_twice_is_the_callers_mistake() -> None:
    pool = Pool(PoolSettings())
    put(pool, "a", graded(), 0)
    with pytest.raises(ValueError, match="already"):
        put(pool, "a", graded(), 0)


def test_a_dump_restores() -> None:
    pool, other = Pool(PoolSettings()), Pool(PoolSettings())
    for k in range(3):
        put(pool, str(k), graded(index=k), k)
    other.restore(pool.dump())
    assert other.dump() == pool.dump()


@given(st.lists(st.tuples(st.sampled_from("pqr"), st.integers(0, 30), st.booleans()), max_size=60))
def test_every_group_is_used_dropped_or_held(steps: list[tuple[str, int, bool]]) -> None:
    pool = Pool(PoolSettings(max_groups=6, max_age_s=20, max_uses=2))
    now, used, dropped = 0, 0, Counter[str]()
    for step, (peer, wait, use) in enumerate(steps):
        now += wait
        dropped += put(pool, str(step), graded(peer, step), now)
        if use:
            used += pool.use(list(pool)[:1])
        dropped += pool.expire(now)
        assert step + 1 == used + dropped.total() + pool.num_unused()
        assert len(pool) <= 6


def test_a_crowd_of_newcomers_does_not_wash_the_others_out() -> None:
    pool = Pool(PoolSettings(max_groups=10, max_share_per_peer=1.0))

    def author_of(peer: str) -> str:
        return "" if peer.startswith("made") else peer

    for k in range(4):
        put(pool, f"friend-{k}", graded("friend", k), 0, author_of)
    for k in range(100):
        put(pool, f"made-{k}", graded(f"made-{k}", k), 0, author_of)
    left = held(pool)
    assert left[:4] == [f"friend-{k}" for k in range(4)] and len(left) == 10
    assert left[4:] == [f"made-{k}" for k in range(94, 100)], "of the crowd the oldest go"


def test_what_cannot_teach_after_all_leaves() -> None:
    pool = Pool(PoolSettings(max_uses=2))
    for name in ("new", "used", "stays"):
        put(pool, name, graded(name), 0)
    use(pool, ["used"])
    assert pool.refuse(named(pool, ["new", "used"]), Reason.IMPROBABLE) == 1, "a used one has taught"
    assert held(pool) == ["stays"]


def test_who_leaves_unused_is_told() -> None:
    left: list[tuple[str, str]] = []
    pool = Pool(
        PoolSettings(max_groups=2, max_age_s=10, max_uses=2), lambda fate, group: left.append((fate, group.prompt))
    )
    for index in range(3):
        put(pool, str(index), graded(f"peer-{index}", index), index)
    use(pool, ["1"])
    pool.refuse(named(pool, ["2"]), Reason.HARMFUL)
    pool.expire(now=100)
    assert left == [("pool_full", "question 0"), ("harmful", "question 2")], "1 has been used"
