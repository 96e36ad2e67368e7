"""Questions for evaluation, of every kind of task: whoever sends groups on them, nobody trains on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarm.environments.config import TaskConfig
from swarm.environments.episodes.number_guessing import NumberGuessingTask
from swarm.environments.mixture import TaskMixture
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.procedural import FIRST_SUBSTITUTE, HeldApart
from swarm.environments.sources.reasoning_gym import ReasoningGymSource, ReasoningGymTask
from swarm.environments.task import PythonTask
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import TaskError
from swarm.net.trust.accounts import OFFENCES
from swarm.reasons import Reason
from swarm.types import HELD_OUT_STREAMS, DatasetRef, Grade, Question, TaskRef, as_text
from tests.sapo.test_round import FakeUpdater, Swarm

OWN = Path(__file__).parent.parent.parent / "examples" / "own_task.py"
STREAMS = (HELD_OUT_STREAMS, HELD_OUT_STREAMS + 5, HELD_OUT_STREAMS + 2**40)
"""Those of `evaluation.seed` 0 and 5, and of a follower's comparisons."""
KINDS = ("dataset", "number_guessing", "python", "reasoning_gym", "with a tool")


def rows(folder: Path, count: int, split: str = "train") -> DatasetTask:
    """Rows that are answered with `good`."""
    path = folder / f"{split}.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{k}?", "answer": "good"}) for k in range(count)))
    return DatasetTask(kind="dataset", name="rows", path=str(folder), split=split, find="whole")


def is_held_out(mixture: TaskMixture, ref: TaskRef) -> bool:
    grade = mixture.grade(ref, ["x"])
    assert isinstance(grade, Grade)
    return grade.held_out


@pytest.mark.parametrize("kind", KINDS)
def test_what_evaluations_ask_is_held_out_and_what_nodes_train_on_is_not(kind: str, tmp_path: Path) -> None:
    tasks: dict[str, TaskConfig] = {
        "dataset": rows(tmp_path, 45),
        "number_guessing": NumberGuessingTask(),
        "python": PythonTask(kind="python", name="halve", target=f"{OWN}:Halve"),
        "reasoning_gym": ReasoningGymTask(name="gcd"),
        "with a tool": ReasoningGymTask(name="gcd", tool="calculator", max_turns=2),
    }
    mixture = TaskMixture([tasks[kind]])
    for index in range(20):
        assert all(is_held_out(mixture, mixture.question(seed, index).ref) for seed in STREAMS)
        assert not any(is_held_out(mixture, mixture.question(s, index).ref) for s in (0, 7, HELD_OUT_STREAMS - 1))


TINY_SPACES: dict[str, TaskConfig] = {
    "81 texts": TINY_TASKS[1],
    "gcd": TINY_TASKS[2],
    "20 texts": PythonTask(kind="python", name="halve", target=f"{OWN}:Halve", options={"largest": 20}),
    "with a tool": TINY_TASKS[1].model_copy(update={"tool": "calculator"}),
}


@pytest.mark.parametrize("space", TINY_SPACES)
def test_no_seed_leads_to_a_text_that_evaluations_ask(space: str) -> None:
    mixture = TaskMixture([TINY_SPACES[space]])

    def texts(seed: int) -> set[str]:
        return {as_text(mixture.question(seed, index).prompt) for index in range(100)}

    asked = set().union(*map(texts, STREAMS))
    trained = texts(0) | texts(7) | texts(HELD_OUT_STREAMS - 1)
    assert asked and trained and not asked & trained


def test_the_same_text_under_another_seed_is_held_out_too() -> None:
    mixture, (task, *_) = TaskMixture([TINY_TASKS[1]]), (TINY_TASKS[1],)
    source = mixture.sources[task.name]
    assert isinstance(source, ReasoningGymSource)
    held_out = {as_text(mixture.question(HELD_OUT_STREAMS, index).prompt) for index in range(40)}
    made = [source._at(3, index) for index in range(200)]
    same = [question for question in made if as_text(question.prompt) in held_out]
    assert same and all(is_held_out(mixture, question.ref) for question in same)


def test_where_there_is_one_question_it_is_asked_and_trained_on(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "from swarm.environments.task import Task\n\nclass One(Task):\n    text: str = ''\n"
        "    def question(self, random):\n        return self.text, '1'\n"
        "    def reward(self, question, completion, reference):\n        return 1.0\n"
    )
    for text in map(str, range(60)):
        only = PythonTask(kind="python", name="one", target=f"{tmp_path}/one.py:One", options={"text": text})
        mixture = TaskMixture([only])
        trained, evaluated = mixture.question(0, 0), mixture.question(HELD_OUT_STREAMS, 0)
        assert trained.prompt == evaluated.prompt == text
        receiver = TaskMixture([only])
        assert not is_held_out(receiver, trained.ref) and is_held_out(receiver, evaluated.ref)


def test_a_substitute_that_no_stream_would_ask_is_held_out() -> None:
    source, mixture = ReasoningGymSource(TINY_TASKS[1]), TaskMixture([TINY_TASKS[1]])
    substitutes = [source._at(3, FIRST_SUBSTITUTE + index).ref for index in range(100)]
    assert any(is_held_out(mixture, ref) for ref in substitutes)


def test_a_question_whose_stream_fails_is_no_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = TaskMixture([TINY_TASKS[1]])
    source = mixture.sources[TINY_TASKS[1].name]
    assert isinstance(source, ReasoningGymSource)
    make = source._at
    ref = next(ref for ref in (make(3, index).ref for index in range(100)) if is_held_out(mixture, ref))

    def failing(seed: int, index: int) -> Question:
        if index >= FIRST_SUBSTITUTE:
            raise TaskError("no such question")
        return make(seed, index)

    fresh = HeldApart(failing, source._bare)
    assert fresh.is_held_out(ref)


ASKED_OTHERWISE: dict[str, tuple[TaskConfig, TaskConfig]] = {
    "reasoning_gym": (
        ReasoningGymTask(name="gcd", options={"max_numbers": 2, "max_value": 30}),
        ReasoningGymTask(
            name="boxed", dataset="gcd", options={"max_numbers": 2, "max_value": 30}, find="boxed", tool="calculator"
        ),
    ),
    "python": (
        PythonTask(kind="python", name="halve", target=f"{OWN}:Halve", options={"largest": 200}),
        PythonTask(kind="python", name="other", target=f"{OWN}:Halve", options={"largest": 200}, ask="Only a number."),
    ),
}


@pytest.mark.parametrize("kind", ASKED_OTHERWISE)
def test_a_suite_that_asks_for_another_form_asks_nothing_that_was_trained_on(kind: str) -> None:
    trains, evaluates = (TaskMixture([task]) for task in ASKED_OTHERWISE[kind])
    trained = {as_text(trains.question(3, index).prompt).split("\n")[0] for index in range(500)}
    asked = {as_text(evaluates.question(HELD_OUT_STREAMS, index).prompt).split("\n")[0] for index in range(50)}
    assert trained and asked and not trained & asked


def test_a_row_is_held_out_by_its_number_whatever_drew_it(tmp_path: Path) -> None:
    mixture = TaskMixture([rows(tmp_path, 45)])
    refs = [mixture.question(seed, index).ref for seed in (0, HELD_OUT_STREAMS) for index in range(400)]
    held_out = {ref.row: is_held_out(mixture, ref) for ref in refs if isinstance(ref, DatasetRef)}
    assert held_out == {row: row % 10 == 9 for row in range(45)}
    elsewhere = replace(refs[0], revision="another copy")
    assert is_held_out(mixture, elsewhere) == is_held_out(mixture, refs[0])


@pytest.mark.parametrize(("count", "split"), [(9, "train"), (45, "test")])
def test_where_training_and_evaluation_share_all_rows_none_is_refused(count: int, split: str, tmp_path: Path) -> None:
    mixture = TaskMixture([rows(tmp_path, count, split)])
    assert not any(is_held_out(mixture, mixture.question(HELD_OUT_STREAMS, index).ref) for index in range(count))


class DrawsHeldOut(InlineVerifier):
    """Asks what evaluations ask."""

    def draw(self, seed: int, start: int, count: int, task: str = "") -> list[Question]:
        return super().draw(HELD_OUT_STREAMS + seed, start, count, task)


def test_groups_on_rows_for_evaluation_are_refused_and_count_against_their_sender(tmp_path: Path) -> None:
    tasks = [rows(tmp_path, 200)]
    swarm, updater = Swarm(), FakeUpdater()
    cheat = swarm.node(1, verifier=DrawsHeldOut(tasks), updater=FakeUpdater())
    honest = swarm.node(2, verifier=InlineVerifier(tasks), updater=FakeUpdater())
    receiver = swarm.node(3, verifier=InlineVerifier(tasks), updater=updater)
    for node in (cheat, honest, receiver):
        node.run_round()
    counts, sent = receiver.ledger.snapshot(), cheat.ledger.snapshot()["shared"]
    assert counts["dropped"] == {"held_out": sent} and sent > 0
    trained = [graded.group for local, external in updater.batches for graded in (*local, *external)]
    assert {group.peer_id for group in trained} == {honest.peer_id, receiver.peer_id}
    assert all(isinstance(group.question, DatasetRef) and group.question.row % 10 != 9 for group in trained)
    account = receiver.external._exchange.book.stats()[cheat.peer_id]  # type: ignore[attr-defined]
    assert account.dropped["held_out"] == sent
    assert account.offence > 0.9 * sent * OFFENCES[Reason.HELD_OUT]


def test_an_evaluation_finds_its_questions_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source, made = ReasoningGymSource(ReasoningGymTask(name="gcd")), []
    make = source._at
    monkeypatch.setattr(source._apart, "_make", lambda seed, index: made.append(index) or make(seed, index))
    first = [source.question(HELD_OUT_STREAMS, index) for index in range(20)]
    num_first = len(made)
    assert [source.question(HELD_OUT_STREAMS, index) for index in range(20)] == first
    assert num_first > 60 and len(made) - num_first == 20
