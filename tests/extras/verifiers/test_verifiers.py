"""The contract of `TaskVerifier`, on both implementations."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from swarm.environments.config import VerificationSettings
from swarm.environments.judge import JudgeSettings, unjudged
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.inline import InlineVerifier
from swarm.environments.verification.pool import VerificationPool
from swarm.extras.judging.service import JudgeService
from swarm.extras.judging.verifier import JudgingVerifier
from swarm.protocols import TaskVerifier
from swarm.types import Grade, Rejection

GUESSES = [f"<answer>{number}</answer>" for number in range(-30, 150)]


@pytest.fixture(scope="module", params=["inline", "inline with a judge", "one worker", "two workers"])
def verifier(request: pytest.FixtureRequest) -> Iterator[TaskVerifier]:
    made: TaskVerifier
    if request.param == "inline":
        made = InlineVerifier(TINY_TASKS)
    elif request.param == "inline with a judge":
        settings = JudgeSettings(model="m", endpoint="http://127.0.0.1:1/v1")
        made = JudgingVerifier(InlineVerifier(TINY_TASKS), TINY_TASKS, settings, JudgeService(settings))
    else:
        made = VerificationPool(TINY_TASKS, VerificationSettings(workers=1 if request.param == "one worker" else 2))
    yield made
    made.close()


def timeless(result: Grade | Rejection) -> Grade | Rejection:
    """The result without what it took to get it."""
    return msgspec.structs.replace(result, seconds=0.0)


def collect(verifier: TaskVerifier, count: int) -> dict[str, Grade | Rejection]:
    results: dict[str, Grade | Rejection] = {}
    limit = time.monotonic() + 300
    while len(results) < count and time.monotonic() < limit:
        results.update(verifier.collect())
    return results


def test_draws_are_a_pure_function_of_stream_and_index(verifier: TaskVerifier) -> None:
    questions = verifier.draw(4, 10, 12)
    assert len(questions) == 12
    assert verifier.draw(4, 15, 3) == questions[5:8]
    assert verifier.draw(5, 10, 12) != questions
    assert questions == InlineVerifier(TINY_TASKS).draw(4, 10, 12)
    assert verifier.draw(4, 10, 0) == []


def test_one_task_may_be_asked_alone_and_generated_tasks_never_end(verifier: TaskVerifier) -> None:
    questions = verifier.draw(4, 0, 9, "lcm")
    assert {question.ref.task for question in questions} == {"lcm"}
    assert verifier.draw(4, 6, 3, "lcm") == questions[6:]
    mixed = [question for question in verifier.draw(4, 0, 30) if question.ref.task == "lcm"]
    assert mixed and all(question == verifier.draw(4, question.ref.index, 1, "lcm")[0] for question in mixed)
    assert verifier.num_held_out("lcm") is None


def test_a_group_begun_gets_the_grade_it_would_get_with_others(verifier: TaskVerifier) -> None:
    questions = verifier.draw(1, 0, 6)
    begun = [verifier.begin_grading(question.ref, GUESSES) for question in questions]
    waited = verifier.grade([(question.ref, GUESSES) for question in questions])
    assert [replace(verdict.result(), seconds=0.0) for verdict in begun] == [replace(v, seconds=0.0) for v in waited]


def test_grades_come_in_order_one_a_job_with_one_reward_a_completion(verifier: TaskVerifier) -> None:
    questions = [q for q in verifier.draw(1, 0, 40) if q.ref.task in ("gcd", "lcm", "count_bits", "products")]
    grades = verifier.grade([(question.ref, GUESSES) for question in questions])
    assert len(questions) > 5
    for question, grade in zip(questions, grades, strict=True):
        assert isinstance(grade, Grade)
        assert grade.prompt == question.prompt
        assert len(grade.rewards) == len(GUESSES)
        assert sum(grade.rewards) == 1.0, "exactly one of these numbers is right"


def test_refused_references_are_results_among_others(verifier: TaskVerifier) -> None:
    question = verifier.draw(1, 0, 1)[0]
    changed = [
        question.ref,
        msgspec.structs.replace(question.ref, task="poker"),
        msgspec.structs.replace(question.ref, options_digest=""),
        msgspec.structs.replace(question.ref, question_hash=""),
    ]
    graded, *refused = verifier.grade([(ref, ["x"]) for ref in changed])
    assert timeless(graded) == Grade(question.prompt, (0.0,), expected="7", found=("",))
    reasons = [result.reason for result in refused if isinstance(result, Rejection)]
    assert reasons == ["unknown_task", "options_differ", "question_mismatch"]


def test_submitted_groups_are_collected_once_under_their_keys(verifier: TaskVerifier) -> None:
    questions = verifier.draw(2, 0, 20)
    expected = verifier.grade([(question.ref, GUESSES[:40]) for question in questions])
    for number, question in enumerate(questions):
        verifier.submit(f"group-{number}", question.ref, GUESSES[:40])
    results = collect(verifier, 20)
    assert {key: timeless(result) for key, result in results.items()} == {
        f"group-{number}": timeless(grade) for number, grade in enumerate(expected)
    }
    assert verifier.collect() == []


def test_text_that_is_no_unicode_is_the_callers_error_and_breaks_nothing(verifier: TaskVerifier) -> None:
    if isinstance(unjudged(verifier), InlineVerifier):
        pytest.skip("nothing is encoded without processes")
    question = verifier.draw(1, 0, 1)[0]
    with pytest.raises(UnicodeEncodeError):
        verifier.grade([(question.ref, ["\ud800"])])
    assert verifier.draw(1, 0, 1) == [question]


def test_any_text_can_be_graded(verifier: TaskVerifier) -> None:
    question = verifier.draw(1, 0, 1)[0]
    texts = ["", "\x00", "<answer></answer>", "<answer>" * 1000, "𝟙" * 50_000, "<answer>\ud7ff</answer>"]
    found = ("", "", "", "", "", "\ud7ff")
    for number in (len(texts), 0):
        (result,) = verifier.grade([(question.ref, texts[:number])])
        assert timeless(result) == Grade(question.prompt, (0.0,) * number, expected="7", found=found[:number])
    assert verifier.grade([]) == []
