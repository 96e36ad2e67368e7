"""ReasoningGYM tasks: streams, references, scoring, and every data set of the library once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import closing

import msgspec
import pytest
from reasoning_gym.factory import DATASETS

from swarm.environments.answering import RewardSettings
from swarm.environments.config import VerificationSettings
from swarm.environments.sources.reasoning_gym import ITEMS_PER_DATASET, ReasoningGymSource, ReasoningGymTask
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import Refusal, TaskError
from swarm.types import DatasetRef, Grade, ProceduralRef

EVERY_DATASET = sorted(set(DATASETS) - {"composite"})

NO_ORACLE = {
    "boxnet": "keeps no answer: a plan is simulated",
    "graph_color": "keeps no answer: any proper colouring counts",
    "propositional_logic": "keeps no answer: many conclusions count",
    "rubiks_cube": "keeps no answer: moves are applied to the cube",
    "rush_hour": "keeps no answer: moves are applied to the board",
}


def gcd(**changes: object) -> ReasoningGymSource:
    return ReasoningGymSource(ReasoningGymTask(**{"name": "gcd", **changes}))


@pytest.mark.parametrize("task", TINY_TASKS, ids=lambda task: task.name)
def test_tiny_task_scores_its_own_answer_1_and_a_wrong_one_0(task: ReasoningGymTask) -> None:
    source = ReasoningGymSource(task)
    for index in range(20):
        question = source.question(5, index)
        oracle = source.oracle(question.ref)
        assert source.recall(question.ref) == question
        assert source.score(question.ref, f"so <answer>{oracle}</answer>") == 1.0
        assert source.score(question.ref, "<answer>-987</answer>") == 0.0
        assert source.score(question.ref, str(oracle)) == 0.0, "an answer without its tags is no answer"


def test_tiny_tasks_are_as_small_as_the_embedded_policy_needs() -> None:
    for task in TINY_TASKS:
        source = ReasoningGymSource(task)
        for index in range(50):
            assert len(str(source.oracle(source.question(1, index).ref))) <= 5, task.name


def test_same_arguments_same_question_and_neighbouring_streams_differ() -> None:
    one, other = (
        ReasoningGymSource(ReasoningGymTask(name="chain_sum")),
        ReasoningGymSource(ReasoningGymTask(name="chain_sum")),
    )
    streams = [[one.question(seed, index).prompt for index in range(100)] for seed in range(4)]
    assert streams[2] == [other.question(2, index).prompt for index in range(100)]
    for seed in range(3):
        assert len(set(streams[seed]) & set(streams[seed + 1])) <= 2, "the shortest sums are few"


def test_a_stream_goes_on_past_one_block() -> None:
    source = ReasoningGymSource(ReasoningGymTask(name="word_ladder"))
    last, first = source.question(1, ITEMS_PER_DATASET - 1), source.question(1, ITEMS_PER_DATASET)
    far = source.question(1, 10**12)
    assert len({last.prompt, first.prompt, far.prompt}) == 3
    assert source.recall(far.ref) == far


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "lcm"}, "unknown_task"),
        ({"options_digest": "0" * 32}, "options_differ"),
        ({"question_hash": "0" * 32}, "question_mismatch"),
        ({"seed": 8}, "question_mismatch"),
        ({"index": -1}, "question_mismatch"),
        ({"index": 2**62}, "question_mismatch"),
    ],
)
def test_tampered_references_are_refused_with_their_reason(changes: dict[str, object], reason: str) -> None:
    source = gcd()
    ref = msgspec.structs.replace(source.question(7, 3).ref, **changes)
    for use in (lambda: source.recall(ref), lambda: source.score(ref, "<answer>1</answer>")):
        with pytest.raises(Refusal) as refusal:
            use()
        assert refusal.value.reason == reason


def test_a_dataset_reference_is_not_a_generated_question() -> None:
    with pytest.raises(Refusal, match="unknown_task"):
        gcd().recall(DatasetRef("gcd", "local", "", "", 0, ""))


def test_another_library_version_is_fine_while_the_text_agrees() -> None:
    source = gcd()
    question = source.question(7, 3)
    ref = msgspec.structs.replace(question.ref, library="reasoning_gym==0.1.99")
    assert source.recall(ref).prompt == question.prompt
    assert source.score(ref, f"<answer>{source.oracle(ref)}</answer>") == 1.0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (ReasoningGymTask(name="gcdd"), "no data set 'gcdd'"),
        (ReasoningGymTask(name="gcd", options={"max": 3}), "no option 'max'; its options are min_numbers"),
        (ReasoningGymTask(name="gcd", options={"seed": 3}), "no option 'seed'"),
        (ReasoningGymTask(name="gcd", options={"max_value": 0}), "max_value must be > min_value; got max_value=0"),
        (ReasoningGymTask(name="gcd", options={"max_value": "40"}), "got max_value='40'"),
        (ReasoningGymTask(name="composite"), "with its weight"),
        (ReasoningGymTask(name="spell_backward", options={"data_file": "/etc/passwd"}), "plain words or numbers"),
        (ReasoningGymTask(name="simple_integration", options={"symbols": ["f(x)"]}), "plain words or numbers"),
    ],
)
def test_unusable_configuration_is_named(task: ReasoningGymTask, message: str) -> None:
    with pytest.raises(TaskError) as error:
        ReasoningGymSource(task)
    assert message in str(error.value)


def test_one_dataset_under_two_names() -> None:
    hard = ReasoningGymSource(ReasoningGymTask(name="gcd-hard", dataset="gcd", options={"max_value": 10**6}))
    question = hard.question(1, 0)
    assert question.ref.task == "gcd-hard"
    with pytest.raises(Refusal, match="unknown_task"):
        gcd().recall(question.ref)


def test_partial_credit_when_there_is_no_threshold() -> None:
    partial = gcd(reward=RewardSettings(threshold=None))
    ref = partial.question(1, 1).ref
    oracle = partial.oracle(ref)
    assert 0.0 < partial.score(ref, f"<answer>it is {oracle}</answer>") < 1.0
    strict = gcd()
    assert strict.score(strict.question(1, 1).ref, f"<answer>it is {oracle}</answer>") == 0.0


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf"), -3.0, 7.0])
def test_scores_out_of_range_are_clamped(score: float, monkeypatch: pytest.MonkeyPatch) -> None:
    source = gcd(reward=RewardSettings(threshold=None))
    ref = source.question(1, 1).ref
    monkeypatch.setattr(DATASETS["gcd"][0], "score_answer", lambda self, answer, entry: score)
    assert source.score(ref, "<answer>1</answer>") == (1.0 if score == 7.0 else 0.0)
    assert source.counts["scorer_failures"] == 0


def test_a_scorer_that_raises_gives_0_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, answer: str, entry: object) -> float:
        raise RecursionError("too deep")

    source = gcd()
    ref = source.question(1, 1).ref
    monkeypatch.setattr(DATASETS["gcd"][0], "score_answer", fail)
    assert source.score(ref, "<answer>1</answer>") == 0.0
    assert source.counts["scorer_failures"] == 1


def test_a_generator_that_raises_is_a_task_error_here_and_a_mismatch_for_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: object, index: int) -> dict[str, object]:
        raise IndexError("out of words")

    source = gcd()
    ref = source.question(1, 1).ref
    monkeypatch.setattr(DATASETS["gcd"][0], "__getitem__", fail)
    with pytest.raises(TaskError, match="out of words"):
        source.question(1, 2)
    with pytest.raises(Refusal, match="question_mismatch"):
        source.recall(msgspec.structs.replace(ref, index=2))
    assert source.recall(ref).ref == ref, "a fresh question is remembered, not generated again"


def test_a_question_that_options_make_too_long_is_none() -> None:
    options = {"min_string_length": 200_000, "max_string_length": 200_000}
    source = ReasoningGymSource(ReasoningGymTask(name="string_insertion", options=options))
    with pytest.raises(TaskError, match="is over 131072 characters long"):
        source.question(1, 0)


def test_a_scorer_writes_into_a_copy() -> None:
    source = ReasoningGymSource(ReasoningGymTask(name="knight_swap", options={"impossible_ratio": 0.0}))
    ref = source.question(1, 0).ref
    assert isinstance(ref, ProceduralRef)
    oracle = source.oracle(ref)
    before = dict(source._entry(ref.seed, ref.index)["metadata"])  # type: ignore[call-overload]
    assert source.score(ref, f"<answer>{oracle}</answer>") == 1.0
    after = source._entry(ref.seed, ref.index)["metadata"]
    assert all(after[key] is value for key, value in before.items())  # type: ignore[index]


def test_generating_leaves_the_process_random_state_alone() -> None:
    source = ReasoningGymSource(ReasoningGymTask(name="list_functions"))
    random.seed(1)
    before = random.getstate()
    source.question(1, 1)
    assert random.getstate() == before


DRAW_ALL = """
import json, sys, msgspec
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.sources.reasoning_gym import ReasoningGymSource
out = []
for name in json.loads(sys.argv[1]):
    source = ReasoningGymSource(ReasoningGymTask(name=name))
    for index in (0, 499, 500):
        question = source.question(11, index)
        out.append((msgspec.to_builtins(question.ref), source.oracle(question.ref)))
sys.__stdout__.write("\\n" + json.dumps(out))
"""


@pytest.mark.slow
def test_every_dataset_is_recalled_in_another_process_and_scores_its_own_answer() -> None:
    drawn = subprocess.run(
        [sys.executable, "-c", DRAW_ALL, json.dumps(EVERY_DATASET)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        check=True,
    )
    pairs = json.loads(drawn.stdout.splitlines()[-1])
    refs = [msgspec.convert(ref, ProceduralRef) for ref, _ in pairs]
    tasks = [ReasoningGymTask(name=name) for name in EVERY_DATASET]
    with closing(VerificationPool(tasks, VerificationSettings(time_limit_s=30))) as pool:
        jobs = [(ref, [f"<answer>{oracle}</answer>"]) for ref, (_, oracle) in zip(refs, pairs, strict=True)]
        results = pool.grade(jobs)
    refused = {ref.task: result for ref, result in zip(refs, results, strict=True) if not isinstance(result, Grade)}
    assert refused == {}
    unrewarded = {ref.task for ref, result in zip(refs, results, strict=True) if result.rewards != (1.0,)}
    assert unrewarded == set(NO_ORACLE)
    assert {ref.task for ref, (_, oracle) in zip(refs, pairs, strict=True) if oracle is None} == set(NO_ORACLE)


IMPORTED = """
import sys
from swarm.environments.sources.library import DATASETS, create_dataset, load
load("gcd")
print(sorted(DATASETS), "sympy" in sys.modules, "reasoning_gym" in sys.modules)
load("../gcd")
print(len(DATASETS) > 100, "sympy" in sys.modules)
from reasoning_gym import create_dataset as whole
print("lcm" in DATASETS, whole("gcd").__class__ is create_dataset("gcd").__class__)
"""


def test_only_the_data_sets_of_a_run_are_imported_unless_a_name_is_none_of_a_module() -> None:
    found = subprocess.run([sys.executable, "-c", IMPORTED], stdout=subprocess.PIPE, check=True, text=True)
    assert found.stdout.splitlines() == ["['composite', 'gcd'] False False", "True True", "True True"]


def test_questions_of_codeio_are_the_same_whatever_was_asked_before(capfd: pytest.CaptureFixture[str]) -> None:
    one, other = (ReasoningGymSource(ReasoningGymTask(name="codeio"), num_entries=1) for _ in range(2))
    draws_from_numpy = 116
    first = one._at(5, draws_from_numpy)
    assert "numpy.random" in str(first.prompt)
    for source in (one, other):
        source._at(5, 1)
        assert source._at(5, draws_from_numpy) == first


def test_tasks_of_codeio_with_other_difficulties_keep_their_rows(capfd: pytest.CaptureFixture[str]) -> None:
    easy, hard = (
        ReasoningGymSource(ReasoningGymTask(name="codeio", options={"difficulty": level}), num_entries=1)
        for level in (3, 8)
    )
    alone = [easy._at(5, index) for index in range(5)]
    for index, question in enumerate(alone):
        hard._at(5, index)
        assert easy._at(5, index) == question


def test_questions_whose_answers_are_scored_otherwise_since_are_another_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def ref(name: str) -> object:
        return ReasoningGymSource(ReasoningGymTask(name=name)).question(1, 0).ref

    now = {name: ref(name) for name in ("propositional_logic", "knights_knaves", "gcd")}
    monkeypatch.setattr("swarm.environments.sources.reasoning_gym.SCORED_OTHERWISE", {})
    assert {name for name, found in now.items() if found != ref(name)} == {"propositional_logic", "knights_knaves"}
