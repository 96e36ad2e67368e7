"""Grades with the judge's rewards: own groups, others' groups, and what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from swarm.environments.config import TASK_LIST, TaskConfig
from swarm.environments.judge import (
    JudgeSettings,
    RewardServiceSettings,
    lacking_raters,
    other_judges,
    unjudged,
    with_raters,
)
from swarm.environments.mixture import TaskMixture
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import ConfigError
from swarm.extras.judging.prompts import Query, Ratings
from swarm.extras.judging.verifier import JudgingVerifier
from swarm.groups.credit import has_signal
from swarm.reasons import Reason
from swarm.types import HELD_OUT_STREAMS, Grade, Question, Rejection, Text
from tests.extras.judging.fake import FakeProcess, fives, service

JUDGE = {"kind": "judge", "name": "style", "model": "wise", "rubric": "Be kind.", "tolerance": 0.1}
NOBODY = (JudgeSettings(), RewardServiceSettings())
ANSWERED = {"kind": "answer", "weight": 3}


def tasks(*rewards: dict[str, object], **changes: object) -> tuple[TaskConfig, ...]:
    judged = {"kind": "reasoning_gym", "name": "gcd", "rewards": rewards or (ANSWERED, {**JUDGE, **changes})}
    return TASK_LIST.validate_python([judged, {"kind": "reasoning_gym", "name": "lcm"}])


def by_length(queries: Sequence[Query]) -> Ratings:
    """Answers of one letter get 10 points, others 2."""
    return Ratings(tuple(10 if "]\nx\n[" in query.prompt else 2 for query in queries))


@contextmanager
def verifier(
    reply: Callable[[Sequence[Query]], Ratings | None] = by_length,
    given: tuple[TaskConfig, ...] = (),
    **changes: object,
) -> Iterator[tuple[JudgingVerifier, list[FakeProcess]]]:
    given = given or tasks()
    with service(reply, **changes) as (judge, processes):
        settings = JudgeSettings.model_validate({"model": "wise", **changes})
        yield JudgingVerifier(InlineVerifier(given), given, settings, judge), processes


def question(made: JudgingVerifier, task: str = "gcd") -> Question:
    return made.draw(0, 0, 1, task)[0]


def collected(made: JudgingVerifier) -> Grade | Rejection:
    while not (found := made.collect()):
        pass
    ((key, verdict),) = found
    assert key == "key"
    return verdict


def test_own_and_others_groups_get_the_judge_s_reward_by_its_name() -> None:
    with verifier() as (made, (process, *_)):
        ref = question(made).ref
        grade = made.begin_grading(ref, ["x", "long"]).result()
        assert isinstance(grade, Grade)
        assert grade.parts == {"answer": (0.0, 0.0), "style": (1.0, 0.2)}
        assert grade.rewards == pytest.approx((0.25, 0.05)) and grade.answers == (0.0, 0.0)
        assert "Be kind." in process.asked[0][0].prompt and grade.prompt in process.asked[0][0].prompt
        made.submit("key", ref, ["x", "long"], "stranger")
        assert replace(collected(made), seconds=0.0) == replace(grade, seconds=0.0)
        assert len(process.asked) == 1, "the second time is known"
        assert [made.grade([(ref, ["x", "long"])])] == [[grade]]


def test_of_an_episode_with_a_tool_the_judge_reads_all_turns_once_it_is_over() -> None:
    (judged, _) = tasks()
    (with_tool,) = TASK_LIST.validate_python([{**judged.model_dump(mode="json"), "tool": "calculator"}])
    with verifier(given=(with_tool,)) as (made, (process, *_)):
        ref = question(made).ref
        so_far = made.replay(ref, "<tool>6 * 7</tool>").result()
        assert (
            isinstance(so_far, Grade) and so_far.observed(0) == ((Text("42", "calculator"),),) and process.asked == []
        )
        grade = made.begin_grading(ref, [("<tool>6 * 7</tool>", "<answer>0</answer>"), "x"]).result()
        assert isinstance(grade, Grade) and grade.parts == {"answer": (0.0, 0.0), "style": (0.2, 1.0)}
        assert "<tool>6 * 7</tool>\n\n<answer>0</answer>" in process.asked[0][0].prompt


def test_tasks_without_a_judge_ask_none() -> None:
    with verifier() as (made, (process, *_)):
        ref = question(made, "lcm").ref
        assert isinstance(made.begin_grading(ref, ["x"]).result(), Grade)
        made.submit("key", ref, ["x"], "stranger")
        assert isinstance(collected(made), Grade) and process.asked == []


def test_others_groups_can_be_left_out() -> None:
    with verifier(strangers="skip") as (made, (process, *_)):
        made.submit("key", question(made).ref, ["x"], "stranger")
        verdict = collected(made)
        assert isinstance(verdict, Rejection) and verdict.reason == Reason.JUDGE_SKIPPED and process.asked == []
        assert isinstance(made.begin_grading(question(made).ref, ["x"]).result(), Grade)


def test_a_group_that_is_refused_is_not_judged() -> None:
    other = TaskMixture(tasks(ANSWERED, {**JUDGE, "rubric": "Be rude."})).question(0, 0, task="gcd").ref
    with verifier() as (made, (process, *_)):
        made.submit("key", other, ["x"], "stranger")
        verdict = collected(made)
        assert isinstance(verdict, Rejection) and verdict.reason == Reason.OPTIONS_DIFFER and process.asked == []


def test_others_groups_on_held_out_questions_are_not_judged() -> None:
    with verifier() as (made, (process, *_)):
        made.submit("key", made.draw(HELD_OUT_STREAMS, 0, 1, "gcd")[0].ref, ["x"], "stranger")
        verdict = collected(made)
        assert isinstance(verdict, Grade) and verdict.held_out and process.asked == []


def test_a_judge_without_a_reply_leaves_the_group_out() -> None:
    with verifier(lambda queries: None, time_limit_s=0.05) as (made, _):
        verdict = made.begin_grading(question(made).ref, ["x", "y"]).result()
        assert isinstance(verdict, Rejection) and verdict.reason == Reason.JUDGE_TIMEOUT


def test_noise_within_the_tolerance_is_no_signal_but_leaves_the_others() -> None:
    noisy = iter((5, 6))
    only = tasks({**JUDGE, "weight": 1})
    with verifier(lambda queries: Ratings(tuple(next(noisy) for _ in queries)), only) as (made, _):
        grade = made.begin_grading(question(made).ref, ["x", "y"]).result()
        assert isinstance(grade, Grade) and not has_signal(grade.rewards)
        assert grade.rewards == pytest.approx((0.55, 0.55))


def test_evaluations_ask_no_judge() -> None:
    with verifier(fives) as (made, (process, *_)):
        (grade,) = unjudged(made).grade([(question(made).ref, ["x"])])
        assert isinstance(grade, Grade) and grade.parts.keys() == {"answer"} and process.asked == []
        assert unjudged(made.without_rater) is made.without_rater


def test_a_node_says_which_judge_it_lacks_and_which_differs() -> None:
    assert set(lacking_raters(tasks(), NOBODY)) == {"gcd"}
    assert "wise: set judge.model" in lacking_raters(tasks(), NOBODY)["gcd"]
    assert lacking_raters(tasks(), [JudgeSettings(model="other")]) == {} == lacking_raters(TINY_TASKS, NOBODY)
    (line,) = other_judges(tasks(), JudgeSettings(model="other"))
    assert line == "task gcd: its judge is wise, but judge.model is other"
    assert other_judges(tasks(), JudgeSettings(model="wise")) == []


def test_tasks_without_a_judge_need_no_other_verifier() -> None:
    plain = InlineVerifier(TINY_TASKS)
    assert with_raters(plain, TINY_TASKS, NOBODY) is plain
    with pytest.raises(ConfigError, match="task gcd: its rewards need a judge"):
        with_raters(plain, tasks(), NOBODY)
