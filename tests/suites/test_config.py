"""What a suite's settings come to in a run, and what is refused."""

from __future__ import annotations

import pytest

from swarm.config import load_config
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.errors import ConfigError
from swarm.suites.config import Suite, suite_in_run
from swarm.types import Sampling

USUAL = Sampling(temperature=0.8, max_new_tokens=64, stop=("\n\n",))
MINE = DatasetTask(kind="dataset", name="mine", path="rows.jsonl", split="train")
PUBLIC = DatasetTask(kind="dataset", name="shared", path="owner/name", public=True)
GCD = ReasoningGymTask(name="gcd")


def _suite(values: dict[str, object]) -> Suite:
    config = load_config(None, {"evaluation": {"suites": {"mine": values}}}).config
    return suite_in_run("mine", config.evaluation.suites["mine"], (MINE, PUBLIC, GCD), USUAL)


def test_by_default_a_suite_asks_as_the_run_does() -> None:
    suite = _suite({"questions": 5})
    assert suite == Suite("mine", (MINE, PUBLIC, GCD), 5, 1, 0.99, None, USUAL)


def test_tasks_may_be_named_or_its_own_and_asked_on_another_split_and_otherwise() -> None:
    own = {"kind": "reasoning_gym", "name": "lcm"}
    sampling = {"temperature": 0.6, "top_k": 1, "max_new_tokens": 32}
    suite = _suite({"tasks": ["mine", own], "split": "test", "questions": 5, "k": 4, "sampling": sampling})
    assert suite.tasks == (MINE.model_copy(update={"split": "test"}), ReasoningGymTask(name="lcm"))
    assert suite.sampling == Sampling(temperature=0.6, top_k=1, max_new_tokens=32, stop=("\n\n",))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "questions must be a number for tasks that never end: gcd"),
        ({"tasks": [{"kind": "python", "name": "halve", "target": "mine.py:Halve"}]}, "never end: halve"),
        ({"tasks": ["nobody"]}, "the run has no task 'nobody'; its tasks are mine, shared, gcd"),
        ({"tasks": ["mine", "mine"]}, "got mine more than once"),
        ({"tasks": ["shared"], "split": "train;rm"}, "split: task 'shared': split must be like train"),
    ],
)
def test_a_suite_that_cannot_be_asked_is_refused_with_the_fix(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _suite(values)
    assert str(caught.value).startswith("evaluation.suites.mine") and message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'Über': {}}", "evaluation.suites.Über"),
        ("{a: {k: 0}}", "evaluation.suites.a.k"),
        ("{a: {kk: 3}}", "evaluation.suites.a.kk"),
        ("{a: {tasks: [{kind: quiz, name: x}]}}", "evaluation.suites.a task x"),
        ("{a: {sampling: {temperature: 0}}}", "evaluation.suites.a.sampling.temperature"),
    ],
)
def test_a_wrong_field_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(command_line=[("evaluation.suites", text)])
    assert message in str(caught.value)
