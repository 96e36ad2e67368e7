from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings, strategies as st

from swarm.engines.transformers.scheduler import BLOCK, READ_SHARE, Room, Scheduler, SequenceState
from swarm.types import VersionSpan


def _drafts(prompts: list[int], group: int = 1) -> list[SequenceState]:
    return [SequenceState(q, g, [7] * length, 0) for q, length in enumerate(prompts) for g in range(group)]


def _advance(scheduler: Scheduler, lengths: dict[SequenceState, int]) -> None:
    for row in scheduler.rows:
        row.extend([5], [-1.0], 0)
        row.finish_reason = "length" if len(row.ids) >= lengths[row] else None


def test_a_finished_row_is_taken_at_the_next_step_and_order_of_arrival_is_kept() -> None:
    sequences = _drafts([3] * 5)
    lengths = dict(zip(sequences, [1, 3, 2, 1, 1], strict=True))
    scheduler = Scheduler(sequences, Room(2, 10**6))
    seen = []
    while not scheduler.done:
        scheduler.plan()
        seen.append(sorted(row.question for row in scheduler.rows))
        _advance(scheduler, lengths)
    assert seen == [[0, 1], [1, 2], [1, 2], [3, 4]], "always two rows, as long as there are two"


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12))
def test_rows_stay_within_budget_contents_follow_their_rows_and_all_finish(seed: int, blocks: int, slots: int) -> None:
    rng = random.Random(seed)
    budget = 4 * BLOCK + blocks * BLOCK
    sequences = _drafts([rng.randint(1, BLOCK) for _ in range(rng.randint(1, 12))], group=2)
    lengths = {sequence: min(3 * BLOCK, 1 + int(rng.expovariate(0.03))) for sequence in sequences}
    scheduler = Scheduler(sequences, Room(slots, budget))
    contents: list[SequenceState] = []  # what a cache would hold
    finished: Counter[SequenceState] = Counter()
    while not scheduler.done:
        plan = scheduler.plan()
        rows = scheduler.rows
        assert not {target for _, target in plan.moves} & {source for source, _ in plan.moves}
        for source, target in plan.moves:
            contents[target] = contents[source]
        contents = [*contents[: len(rows) - len(plan.admitted)], *plan.admitted]
        assert contents == rows
        assert plan.width == max(row.num_tokens for row in rows)
        assert 1 <= len(rows) <= slots
        assert len(rows) * plan.width <= budget
        _advance(scheduler, lengths)
        finished.update(row for row in rows if row.finish_reason)
    assert set(finished) == set(sequences) and set(finished.values()) == {1}
    assert all(len(sequence.ids) == lengths[sequence] for sequence in sequences)


def test_when_it_gets_tight_the_youngest_wait_and_come_first_afterwards() -> None:
    sequences = _drafts([BLOCK - 2, 1, 1, 1])
    scheduler = Scheduler(sequences, Room(3, 4 * BLOCK))
    lengths = dict(zip(sequences, [3 * BLOCK, 1, 10, 10], strict=True))
    plan = scheduler.plan()
    assert len(plan.admitted) == 2, "the first is about to enter its second block"
    while sequences[2] not in scheduler.rows:
        _advance(scheduler, lengths)
        scheduler.plan()
    while sequences[0].num_tokens < 2 * BLOCK + 1 and sequences[2] in scheduler.rows:
        _advance(scheduler, lengths)
        scheduler.plan()
    assert sequences[0] in scheduler.rows, "who has most tokens stays"


def test_requeued_rows_come_back_in_their_order_with_their_tokens() -> None:
    sequences = _drafts([2, 2, 2], group=2)
    scheduler = Scheduler(sequences, Room(4, 10**6))
    scheduler.plan()
    _advance(scheduler, dict.fromkeys(sequences, 9))
    scheduler.requeue()
    assert scheduler.rows == [] and not scheduler.done
    assert scheduler.plan().admitted == sequences[:4]
    assert [len(sequence.ids) for sequence in sequences] == [1, 1, 1, 1, 0, 0]
    assert sequences[0].read == [7, 7] and sequences[0].since(2) == [5], "the newest is fed, what precedes it is read"


def test_first_turns_that_were_preempted_come_back_oldest_first_whatever_they_are_called() -> None:
    scheduler = Scheduler((), Room(4, 10**6))
    scheduler.add(sequences := [SequenceState(-1 - k, 10 + k, [2], 0, episode=10 + k) for k in range(6)])
    scheduler.plan()
    _advance(scheduler, dict.fromkeys(sequences, 9))
    scheduler.requeue()
    assert [*scheduler.upcoming()] == sequences


def test_next_turns_wait_for_enough_to_read_together_and_the_least_advanced_episodes_are_first() -> None:
    running = 2 * READ_SHARE
    lengths = dict.fromkeys(firsts := _drafts([2] * running), 9)
    scheduler = Scheduler(firsts, Room(running + 3, 10**6))
    scheduler.plan()
    late, early, first = (SequenceState(99, k, [2], 0, episode=k, turn=turn) for k, turn in enumerate((3, 2, 1)))
    scheduler.add([late])
    assert scheduler.plan().admitted == []
    scheduler.add([first])
    assert scheduler.plan().admitted == [first], "of a first turn only the prompt is read, and others share it"
    scheduler.add([early])
    assert list(scheduler.upcoming()) == [early, late]
    assert scheduler.plan().admitted == [], "there is one more row now"
    lengths |= {first: 1}
    _advance(scheduler, lengths)
    assert scheduler.plan().admitted == [early, late]


def test_next_turns_never_wait_for_others_when_nothing_else_is_left() -> None:
    scheduler = Scheduler((), Room(8, 10**6))
    assert scheduler.done
    scheduler.add([turn := SequenceState(0, 0, [2], 0, episode=0, turn=2)])
    assert not scheduler.done
    assert scheduler.plan().admitted == [turn]


def test_halving_ends_at_one_row() -> None:
    scheduler = Scheduler(_drafts([2] * 4), Room(4, 10**6))
    for expected in (4, 2, 1):
        scheduler.plan()
        assert len(scheduler.rows) == expected
        assert scheduler.halve() == (expected > 1)


def test_versions_are_told_by_spans_of_adjacent_tokens() -> None:
    sequence = SequenceState(0, 0, [1], 0)
    for version in (3, 3, 4, 4, 4, 7):
        sequence.extend([9], [-0.5], version)
    assert sequence.spans() == (VersionSpan(3, 2), VersionSpan(4, 3), VersionSpan(7, 1))
