"""Where an answer is in a completion: every rule on ordinary, odd and hostile texts, inline and in workers."""

from __future__ import annotations

import json
import re
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from pydantic import ValidationError
from reasoning_gym.utils import extract_answer

from swarm.environments.answering import FindSettings
from swarm.environments.config import TaskConfig, VerificationSettings
from swarm.environments.mixture import TaskMixture
from swarm.environments.scoring.finding import (
    MAX_SEARCHED_CHARS as MAX_CHARS,
    finder,
    last_box,
    last_number,
    last_pair,
    whole,
)
from swarm.environments.scoring.patterns import MAX_SEARCHED_CHARS as MAX_PATTERN_CHARS, LinearPattern
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.verification.inline import InlineVerifier
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import Refusal, TaskError
from swarm.types import Grade

FEW = settings(max_examples=60)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7 + 5 = 12.", "12"),
        ("first 3, then 4", "4"),
        ("It costs $1,234.50 in total.", "1234.50"),
        ("1,234,567", "1234567"),
        ("1{,}234", "1234"),
        ("1, 2", "2"),
        ("1,2,3", "3"),
        ("-5", "-5"),
        ("x = −7", "-7"),
        ("+5", "5"),
        ("-$8", "-8"),
        ("3-5", "5"),
        ("so it is 3/4", "3/4"),
        (r"\frac{3}{4}", "3/4"),
        (r"$-\dfrac{3}{4}$", "-3/4"),
        ("on 3/4/2024", "2024"),
        (".5", ".5"),
        ("0.50", "0.50"),
        ("12.5kg", "12.5"),
        ("12 kg.", "12"),
        ("12 cm^2", "12"),
        ("12 m^{-2}", "12"),
        (r"12\text{ cm}^3", "12"),
        ("12 m²", "12"),
        ("50%", "50%"),
        ("2e5", "2e5"),
        ("2 × 10^5", "2e5"),
        (r"2 \times 10^{-5}", "2e-5"),
        ("1e999", "1e999"),
        (r"\boxed{5}", "5"),
        ("<answer>5</answer>", "5"),
        ("9" * 5_000, "9" * 5_000),
        ("٣", "٣"),
        ("half", None),
        ("", None),
        ("²", None),
        ("nan inf", None),
    ],
)
def test_the_last_number(text: str, answer: str | None) -> None:
    assert last_number(text) == answer


@given(
    st.integers(-(10**30), 10**30), st.sampled_from(["", ".", " kg", " dollars.", "!\n", " m^2"]), st.text("ab c.,\n")
)
@FEW
def test_a_number_is_found_however_it_is_written(number: int, after: str, before: str) -> None:
    for written in (f"{number}", f"{number:,}", f"**{number:,}**"):
        assert last_number(f"{before} {written}{after}") == str(number)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{1}, no, \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{ \text{yes} }", r"\text{yes}"),
        (r"\boxed{3} and \boxed{unclosed", "3"),
        (r"\boxed{\boxed{5}}", "5"),
        ("boxed{5}", None),
        (r"\boxed 5", "5"),
        (r"\boxed\frac12", r"\frac12"),
        (r"\boxed{28}$ percent", r"28\%"),
        ("5", None),
    ],
)
def test_the_last_box(text: str, answer: str | None) -> None:
    assert last_box(text) == answer


@given(
    st.recursive(
        st.text("ab1\\ ", max_size=5),
        lambda inner: st.lists(inner, max_size=3).map(lambda parts: f"{{{''.join(parts)}}}"),
    )
)
@FEW
def test_whatever_is_balanced_is_found_whole(content: str) -> None:
    assert last_box(rf"\boxed{{0}} then \boxed{{{content}}} end {{ }} }}") == content.strip()


@pytest.mark.parametrize(
    ("text", "answer"), [(" 5 \n", "5"), ("a b", "a b"), ("", None), (" \n", None), ("x" * (MAX_CHARS + 1), None)]
)
def test_the_whole(text: str, answer: str | None) -> None:
    assert whole(text) == answer


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "<", " ", "\n", "1", "a"]), max_size=30).map("".join))
@FEW
def test_the_last_pair_is_what_the_library_finds(text: str) -> None:
    assert last_pair(text) == extract_answer(text)


PATTERNS = [
    r"-?\d+",
    r"[Aa]nswer: (\d+)",
    r"(?i)answer is\s*([a-d])\b",
    r"(?m)^= (.*)$",
    "ab|b",
    "a|ab",
    r"\b\w+\b",
    r"(\d+)(?: apples)?",
    r"\{([^{}]*)\}",
]


@given(
    st.sampled_from(PATTERNS),
    st.lists(
        st.sampled_from(["answer: ", "Answer is ", "= ", "12", "-3", "ab", "b ", "c\n", " apples", "{", "}", "é"]),
        max_size=20,
    ).map("".join),
)
@FEW
def test_the_last_match_is_that_of_pythons_own_engine(pattern: str, text: str) -> None:
    python = re.compile(pattern, re.ASCII)  # RE2's classes such as \w, and \b, know ASCII only
    matches = [found[1] if python.groups else found[0] for found in python.finditer(text)]
    assert LinearPattern(pattern).last(text) == ((matches or [""])[-1] or None)


REDOS = [
    r"(a+)+$",
    r"(a|a)*$",
    r"(a|aa)+b",
    r"(.*a){12}",
    r"(a*)*b",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    "a?" * 30 + "a" * 30 + "b",
    r"(\w+\s?)*;",
    r"(x+x+)+y",
    r"a.*b|a",
    r"(?:.*.*.*.*.*.*.*.*)=",
    r"([^b]?){20}([^a]?){2}!",
    r"((?:.?){5}){5}z",
    r"(?i)(a|á|à|â|ä|ã)*\d",
]
"""Most take Python's engine longer than the universe has."""


@pytest.mark.parametrize("pattern", REDOS)
def test_no_pattern_takes_long_on_any_text(pattern: str) -> None:
    task = ReasoningGymTask(name="gcd", find="regex", find_pattern=pattern, ask="")
    find = finder(task)
    began = time.thread_time()
    for piece in ("a", "aa!", "x", "ab ", "é1", "A\n"):
        find(piece * (MAX_PATTERN_CHARS * 16 // len(piece)))
    assert time.thread_time() - began < 2.0


@pytest.mark.parametrize("piece", ["1,111", "\\boxed{", "}{", "-", "9", "1/", " ", "1 ", "\\frac{", "m^1", "<answer>"])
def test_no_text_takes_long(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.thread_time()
    for find in (last_number, last_box, whole, last_pair):
        find(text)
    assert time.thread_time() - began < 1.0
    assert last_number(f"1 {' ' * MAX_CHARS}") is None, "what is too far from the end is not read"


@given(st.text(max_size=200))
@FEW
def test_no_text_is_an_error(text: str) -> None:
    for find in (last_number, last_box, whole, last_pair, LinearPattern(".*").last):
        assert isinstance(find(text), str | None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"find": "regex", "ask": ""}, "go together"),
        ({"find": "whole", "find_pattern": "a"}, "go together"),
        ({"find": "regex", "find_pattern": "a"}, "needs `ask`"),
        ({"find": "regex", "find_pattern": "a" * 257, "ask": ""}, "256"),
        ({"find": "regex", "find_pattern": "(?:a{30}){40}", "ask": ""}, "at most 1024"),
        ({"find": "regex", "find_pattern": "a{2,}" * 20, "ask": ""}, "at most 1024"),
        ({"find": "regex", "find_pattern": "a{1,999999999999}", "ask": ""}, "at most 1024"),
        ({"find": "regex", "find_pattern": r"\pL+", "ask": ""}, "must not have"),
        ({"find": "regex", "find_pattern": r"\C", "ask": ""}, "must not have"),
        ({"find": "last"}, "last_number"),
        ({"ask": "x" * 20_000}, "at most"),
    ],
)
def test_settings_that_are_refused(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FindSettings(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["(a", "a)(b", r"\Qabc", "(?=a)", r"(a)\1", "[", "a**"])
def test_a_pattern_that_is_not_re2s_is_an_error(pattern: str) -> None:
    with pytest.raises(TaskError, match="RE2"):
        LinearPattern(pattern)


RULES: dict[str, tuple[dict[str, str], str, str]] = {
    "default": ({}, "so <answer>{}</answer>.", "so {}"),
    "tags": ({"find": "tags"}, "so <answer>{}</answer>.", r"so \boxed{{{}}}"),
    "last_number": ({"find": "last_number"}, "2 and 3 make {}.", "{}, and not 1234567"),
    "boxed": ({"find": "boxed"}, r"so \boxed{{{}}}.", "so <answer>{}</answer>"),
    "whole": ({"find": "whole"}, " {}\n", "it is {}"),
    "regex": (
        {"find": "regex", "find_pattern": "(?:a|aa)*ANSWER (-?[0-9]+)", "ask": "End with ANSWER and the number."},
        "a" * 4_000 + "ANSWER {}",
        "a" * 100_000 + "{}",
    ),
}
"""By rule: settings, a completion in which an answer is found, and one in which it is not."""


def tasks_of_every_rule(folder: Path) -> list[TaskConfig]:
    path = folder / "sums.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{n} + {n}?", "answer": str(2 * n)}) for n in range(50)))
    asked: list[TaskConfig] = []
    for rule, (fields, _, _) in RULES.items():
        asked.append(ReasoningGymTask(name=f"bits-{rule}", dataset="count_bits", **fields))  # type: ignore[arg-type]
        asked.append(DatasetTask(kind="dataset", name=f"sums-{rule}", path=str(path), **fields))  # type: ignore[arg-type]
    return asked


def right_answer(mixture: TaskMixture, name: str, seed: int) -> tuple[object, str]:
    source = mixture.sources[name]
    question = source.question(seed, 0)
    if name.startswith("bits"):
        return question.ref, str(source.oracle(question.ref))  # type: ignore[attr-defined]
    return question.ref, str(2 * question.ref.row)  # type: ignore[union-attr]


@pytest.mark.slow
def test_every_rule_on_every_kind_of_task_inline_and_in_workers(tmp_path: Path) -> None:
    tasks = tasks_of_every_rule(tmp_path)
    mixture, jobs = TaskMixture(tasks), []
    for task in tasks:
        ref, answer = right_answer(mixture, task.name, 3)
        _, found, lost = RULES[task.name.partition("-")[2]]
        wrong = str(int(answer) + 1)
        jobs.append((ref, (found.format(answer), found.format(wrong), lost.format(answer), "")))
    inline = InlineVerifier(tasks).grade(jobs)  # type: ignore[arg-type]
    with closing(VerificationPool(tasks, VerificationSettings())) as pool:
        graded = pool.grade(jobs)  # type: ignore[arg-type]
    for task, here, there in zip(tasks, inline, graded, strict=True):
        assert isinstance(here, Grade) and isinstance(there, Grade)
        assert replace(there, seconds=0.0) == replace(here, seconds=0.0)
        assert here.rewards == (1.0, 0.0, 0.0, 0.0), task.name


def test_a_question_asks_for_what_is_looked_for_and_the_default_asks_as_ever(tmp_path: Path) -> None:
    mixture = TaskMixture(tasks_of_every_rule(tmp_path))
    for kind in ("bits", "sums"):
        prompts = {rule: mixture.sources[f"{kind}-{rule}"].question(1, 0).prompt for rule in RULES}
        assert prompts["boxed"].endswith("\nThink step by step if it helps, then put the final answer in \\boxed{}.")
        assert prompts["last_number"].endswith("end with the final number.")
        assert prompts["whole"].endswith("\nReply with the answer only.")
        assert prompts["regex"].endswith("\nEnd with ANSWER and the number.")
        assert "\n" not in prompts["default"].strip() or kind == "bits"
    silent = TaskMixture([ReasoningGymTask(name="bits-boxed", dataset="count_bits", find="boxed", ask="")])
    plain = TaskMixture([ReasoningGymTask(name="bits-boxed", dataset="count_bits")])
    assert silent.question(1, 0).prompt == plain.question(1, 0).prompt


def test_whoever_looks_elsewhere_refuses_the_question_and_tags_are_the_librarys_default() -> None:
    def mixture(**fields: str) -> TaskMixture:
        return TaskMixture([ReasoningGymTask(name="gcd", ask="", **fields)])  # type: ignore[arg-type]

    ref = mixture().question(1, 1).ref
    assert mixture(find="tags").recall(ref).ref == ref
    with pytest.raises(Refusal, match="options_differ"):
        mixture(find="whole").recall(ref)
    ref = mixture(find="regex", find_pattern="a").question(1, 1).ref
    with pytest.raises(Refusal, match="options_differ"):
        mixture(find="regex", find_pattern="b").recall(ref)


def test_a_manifest_carries_the_rule_and_nothing_for_the_default() -> None:
    fields, _, _ = RULES["regex"]
    tasks = (ReasoningGymTask(name="gcd", **fields), ReasoningGymTask(name="lcm"))  # type: ignore[arg-type]
    specs = to_specs(tasks)
    assert [spec.settings for spec in specs] == [fields, {}]
    assert from_specs(specs) == tasks
    hostile = replace(specs[0], settings={**fields, "find_pattern": "(?:a{500}){500}"})
    with pytest.raises(TaskError, match="pattern"):
        from_specs([hostile])
