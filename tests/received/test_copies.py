from __future__ import annotations

from msgspec.structs import replace

from swarm.reasons import Reason
from swarm.received.copies import GRACE_S, Copies
from swarm.types import DatasetRef, RolloutGroup
from tests.example_groups import rollout_group

LONG = "because of this and of that and of much else that has to be thought of before, namely "
TEXTS = tuple(LONG + answer for answer in ("one", "two", "three", "four"))


def judge(copies: Copies, group: RolloutGroup, now: float) -> Reason | None:
    """As of a group that is made and heard now."""
    return copies.judge(replace(group, created_at=now), now)


def test_another_s_words_under_a_new_name_are_a_copy() -> None:
    copies = Copies()
    assert judge(copies, rollout_group("author", 1, TEXTS), now=0.0) is None
    assert judge(copies, rollout_group("thief", 1, TEXTS), now=GRACE_S + 1) == "copied"
    assert (
        judge(
            copies,
            rollout_group("thief", 1, [" " + TEXTS[0].upper(), TEXTS[1].replace("e", "e "), TEXTS[2] + "\n", TEXTS[3]]),
            now=GRACE_S + 1,
        )
        == "copied"
    )
    assert judge(copies, rollout_group("thief", 1, [*TEXTS[:3], "new"]), now=GRACE_S + 1) == "copied"


def test_two_that_come_together_are_nobody_s_fault() -> None:
    copies = Copies()
    judge(copies, rollout_group("whoever was faster", 1, TEXTS), now=0.0)
    assert judge(copies, rollout_group("author", 1, TEXTS), now=1.0) == "repeated"


def test_an_author_s_own_words_teach_once() -> None:
    copies = Copies()
    judge(copies, rollout_group("author", 1, TEXTS), now=0.0)
    assert judge(copies, rollout_group("author", 1, TEXTS, sequence=9), now=GRACE_S + 1) == "repeated"


def test_other_words_and_other_questions_are_new() -> None:
    copies = Copies()
    judge(copies, rollout_group("author", 1, TEXTS), now=0.0)
    assert judge(copies, rollout_group("other", 2, TEXTS), now=GRACE_S + 1) is None
    assert judge(copies, rollout_group("other", 1, [*TEXTS[:2], "five", "six"]), now=GRACE_S + 1) is None


def test_to_ask_first_does_not_hide_a_copy() -> None:
    """Questions of others can be foreseen: whoever has answered one before must not be free to copy their answers."""
    copies = Copies()
    judge(copies, rollout_group("thief", 1, ["x", "y"]), now=0.0)
    judge(copies, rollout_group("author", 1, TEXTS), now=1.0)
    assert judge(copies, rollout_group("accomplice", 1, TEXTS), now=GRACE_S + 2) == "copied"


def test_whoever_foresees_short_answers_gets_nobody_blamed() -> None:
    copies = Copies()
    judge(copies, rollout_group("slanderer", 1, ["17", "18", "19"]), now=0.0)
    assert judge(copies, rollout_group("asker", 1, ["17", "18"]), now=GRACE_S + 1) == "repeated"


def test_short_answers_to_a_row_that_many_draw_are_no_copies() -> None:
    row = DatasetRef("gsm8k", "openai/gsm8k", "main", "digest", 7, "hash")
    copies = Copies()
    short = ["17", "18"]
    judge(copies, rollout_group("one", 1, short, question=row), now=0.0)
    assert judge(copies, rollout_group("two", 2, short, question=row), now=GRACE_S + 1) is None
    judge(copies, rollout_group("one", 3, TEXTS, question=row), now=0.0)
    assert judge(copies, rollout_group("two", 4, TEXTS, question=row), now=GRACE_S + 1) == "copied"


def test_memory_is_bounded() -> None:
    copies = Copies(max_remembered=8)
    for index in range(100):
        judge(copies, rollout_group("author", index, TEXTS), now=0.0)
    assert copies.num_remembered == 8
    assert judge(copies, rollout_group("thief", 99, TEXTS), now=GRACE_S + 1) == "copied"
