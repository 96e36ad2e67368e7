"""Answers of models that think, with every family's marks: from sampled tokens to the reward.

Each case is what a model says, with T for the beginning of its thought and E for its end, and the rules under which it
is right; the reference is 7.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from swarm.environments.mixture import TaskMixture
from swarm.environments.sources.dataset import DatasetTask
from swarm.policy.loading import Policy
from swarm.policy.thinking import Prompted
from swarm.types import Grade
from tests.thinking_models import THINKING, policy_of

RULES = ("tags", "boxed", "last_number", "whole")
CASES = [  # (what is said, rules under which it is right)
    ("T3 and 4 make 7.E<answer>7</answer>", "tags last_number"),
    ("T3 and 4 make 8? No, 7.E7", "last_number whole"),
    ("Tso it is 7E The result is \\boxed{7}.", "boxed last_number"),
    ("T<answer>7</answer>E<answer>8</answer>", ""),
    ("T<answer>8</answer>E<answer>7</answer>", "tags last_number"),
    ("T\\boxed{7}E\\boxed{9}", ""),
    ("T\\boxed{9}E\\boxed{7}", "boxed last_number"),
    ("T7E", ""),
    ("Tit could be <answer>7</answer>, but", ""),
    ("T\\boxed{7} perhaps, or 7", ""),
    ("T7", ""),
    ("T", ""),
    ("TE<answer>7</answer>", "tags last_number"),
    ("TE7", "last_number whole"),
    ("T\n\nE\n\n7\n", "last_number whole"),
    ("Tfirst 3, then 4E I do not know.", ""),
    ("Tnot 7E<answer></answer>", ""),
    ("T</answer> 7 <answer>E<answer>7</answer>", "tags last_number"),
    ("T<answer>E7</answer>", "last_number"),
    ("T1 + 1 = 2\nso 7 + 0 = 7E It is seven: <answer>7.0</answer>", "tags last_number"),
    ("Tthe user wants a think tagE<answer>7</answer> <answer>8</answer>", ""),
    ("Tthe user wants a think tagE<answer>8</answer> <answer>7</answer>", "tags last_number"),
    ("T7 7 7E8 8 7", "last_number"),
    ("T12 12 12E12", ""),
    ("Té ü 日本 7E<answer> 7 </answer>", "tags last_number"),
    ("T\\text{7}E$\\boxed{ 7 }$", "boxed last_number"),
    ("Tlong " + "and so on " * 300 + "E<answer>7</answer>", "tags last_number"),
    ("Tshort" + "E" + "because " * 50 + "7", "last_number"),
    ("T7E\\boxed{7} <answer>7</answer>", "tags boxed last_number"),
    ("T8E\\boxed{7} <answer>8</answer>", "boxed"),
    ("T7E<answer>7", "last_number"),
    ("T7E7</answer>", "last_number"),
    ("T7EThe answer: **7**", "last_number"),
    ("T7E-7", ""),
]


def _cases() -> Iterator[tuple[str, str, str]]:
    for family in THINKING:
        for said, right in CASES:
            yield family, said, right
    without = [("<answer>7</answer>", "tags last_number"), ("7", "last_number whole"), ("\\boxed{8}", "")]
    for family in THINKING:  # no thought where the prompt begins none
        if _policy(family).thinking.prompted is not Prompted.OPENED:
            for said, right in without:
                yield family, f"{THINKING[family].plain}{said}", right


@cache
def _policy(family: str) -> Policy:
    return policy_of(THINKING[family])


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> TaskMixture:
    file: Path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    file.write_text(json.dumps({"question": "3 + 4?", "answer": "7"}) + "\n")
    settings = {"kind": "dataset", "path": str(file)}
    match = {"whole": "exact"}
    return TaskMixture(
        [
            DatasetTask.model_validate({**settings, "name": rule, "find": rule, "match": match.get(rule, "numeric")})
            for rule in RULES
        ]
    )


def test_two_hundred_answers_are_graded_right(mixture: TaskMixture) -> None:
    cases = list(_cases())
    assert len(cases) >= 200
    wrong = []
    for name, said, right in cases:
        family, policy = THINKING[name], _policy(name)
        if said.startswith("T"):
            said = family.open + said[1:].replace("E", family.close, 1)
        text = policy.said(list(policy.tokenizer.encode(f"{said}{family.end}", add_special_tokens=False)))
        for rule in RULES:
            grade = mixture.grade(mixture.question(0, 0, task=rule).ref, [text])
            assert isinstance(grade, Grade), grade
            if (grade.rewards[0] == 1) != (rule in right.split()):
                wrong.append((name, rule, text[:120]))
    assert wrong == []
