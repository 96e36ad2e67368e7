"""Which questions of its stream a node asks."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from swarm.sapo.curriculum import WINDOW, Bucket, Curriculum, TaskSuccess
from swarm.types import ProceduralRef, Question

SUCCESS = {"easy": 1.0, "hard": 0.0, "edge": 0.5}


class Stream:
    """Draws questions of three tasks in turn; a task's questions differ in length by their name alone."""

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        tasks = list(SUCCESS)
        return [
            Question(ProceduralRef(tasks[index % 3], "library", "", seed, index, ""), f"{tasks[index % 3]} {index:06}")
            for index in range(start, start + count)
        ]


def taught(draws: int, batches: int = 20) -> Curriculum:
    """A curriculum after so many batches of eight groups, with the rewards of `SUCCESS`."""
    curriculum = Curriculum(Stream(), 1, draws)
    for batch in range(batches):
        for question in curriculum.draw(8 * batch, 8):
            right = round(8 * SUCCESS[question.ref.task])
            curriculum.note(question, [1.0] * right + [0.0] * (8 - right))
    return curriculum


def asked(curriculum: Curriculum, position: int, batches: int) -> Counter[str]:
    return Counter(
        question.ref.task for batch in range(batches) for question in curriculum.draw(position + 8 * batch, 8)
    )


def test_without_a_choice_the_stream_is_asked_as_it_is() -> None:
    curriculum = taught(draws=1)
    assert curriculum.draw(40, 8) == Stream().draw(1, 40, 8)
    assert curriculum.dump() == {}


def test_questions_at_the_edge_are_preferred_and_none_is_given_up() -> None:
    counts = asked(taught(draws=4), 160, 50)
    # Of 32 drawn 10 to 11 are of each task; 8 are asked.
    assert counts["edge"] > 0.7 * counts.total()
    assert min(counts["easy"], counts["hard"]) > 0.01 * counts.total()


@pytest.mark.parametrize(("right", "completions"), [(0, 0), (0, 40), (7, 8), (3.5, 16), (512, 512)])
def test_learnability_is_the_posterior_mean(right: float, completions: float) -> None:
    p = (np.arange(400_000) + 0.5) / 400_000
    density = p ** (right + 0.5 - 1) * (1 - p) ** (completions - right + 0.5 - 1)
    expected = float((4 * p * (1 - p) * density).sum() / density.sum())
    assert Bucket(right, completions).learnability == pytest.approx(expected, abs=2e-3)


def test_what_was_hard_is_asked_again_once_it_is_not() -> None:
    curriculum = taught(draws=4, batches=60)
    before = asked(curriculum, 480, 40)["hard"]
    (question,) = [each for each in Stream().draw(1, 0, 3) if each.ref.task == "hard"]
    for _ in range(int(WINDOW) // 8):
        curriculum.note(question, [1.0, 0.0] * 4)
    assert asked(curriculum, 480, 40)["hard"] > 3 * before


def test_rewards_beyond_the_usual_range_count_as_right_or_wrong() -> None:
    assert Bucket().after([-5.0, 40.0, 0.25]) == Bucket(1.25, 3.0)


def test_a_bucket_forgets() -> None:
    bucket = Bucket()
    for _ in range(200):
        bucket = bucket.after([0.0] * 8)
    assert bucket.completions == WINDOW
    for _ in range(200):
        bucket = bucket.after([1.0] * 8)
    assert bucket.right / bucket.completions > 0.95


def test_no_question_is_asked_twice_and_the_order_is_the_streams() -> None:
    curriculum = taught(draws=3)
    refs = [question.ref for batch in range(10) for question in curriculum.draw(8 * batch, 8)]
    assert len(set(refs)) == 80
    assert [ref.index for ref in refs] == sorted(ref.index for ref in refs)


def test_a_resumed_node_asks_what_the_lost_one_would_have() -> None:
    lost, resumed = taught(draws=4), Curriculum(Stream(), 1, 4)
    resumed.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(lost.dump()), type=dict[str, Bucket]))
    assert resumed.draw(160, 8) == lost.draw(160, 8) != Curriculum(Stream(), 1, 4).draw(160, 8)


def test_members_tell_where_the_edge_is_before_this_node_knows() -> None:
    new = taught(draws=4, batches=0)
    alone = asked(new, 160, 50)["edge"]
    new.hear([taught(draws=4).tries()] * 4)
    assert asked(new, 160, 50)["edge"] > 1.5 * alone


def test_no_number_of_liars_outweighs_what_a_node_has_seen() -> None:
    curriculum = taught(draws=4, batches=60)
    before = asked(curriculum, 480, 50)
    lies = {name: (2**50, 2**50) if name.startswith("edge") else (2**49, 2**50) for name in curriculum.tries()}
    curriculum.hear([lies] * 1_000)
    assert asked(curriculum, 480, 50) == before


def test_claims_are_no_own_tries_and_need_not_be_possible() -> None:
    curriculum = taught(draws=4)
    known = curriculum.tries()
    curriculum.hear([{f"unknown {number}": (1, 2) for number in range(16)}, {name: (9, 2) for name in known}])
    assert curriculum.tries() == known
    assert asked(curriculum, 160, 10).total() == 80


def test_success_by_task_is_that_of_the_completions() -> None:
    success = TaskSuccess()
    for _ in range(200):
        success.note({"half": (4.0, 8), "easy": (8.0, 8), "hard": (0.0, 8), "fined": (-5.0, 8)})
    found = success.learnability(3)
    assert found["half"] == pytest.approx(1.0, abs=0.01)
    assert found["easy"] == found["hard"] == pytest.approx(0.0, abs=0.01) and len(found) == 3
    assert success.learnability(4)["fined"] == found["hard"]
