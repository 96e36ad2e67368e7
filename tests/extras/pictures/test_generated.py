"""Questions with pictures that are made from a seed: right, balanced, the same in every process."""

from __future__ import annotations

from collections import Counter

import numpy
import pytest
from sklearn.datasets import load_digits

from swarm.environments.config import TaskConfig
from swarm.environments.digests import Chance
from swarm.environments.mixture import TaskMixture
from swarm.environments.sources.generated import Made
from swarm.environments.specs import from_specs, to_specs
from swarm.extras.pictures.tasks import DigitsTask, ShapesTask
from swarm.types import HELD_OUT_STREAMS, Text
from swarm.types.media import Image
from tests.environments.generated import (
    chance,
    check_made_in_a_sandbox,
    check_recalled_scored_and_held_out,
    check_refused_by_name,
    check_same_in_every_process,
    pixels,
)

SHAPES, DIGITS = ShapesTask(kind="shapes"), DigitsTask(kind="digits")
TASKS: tuple[TaskConfig, ...] = (SHAPES, DIGITS)
DIGESTS = {
    "shapes": "54d8d002e1fada7e2221f8dfe7de771d",
    "digits": "e30195ed846fa9354fae5e88c9b2482d",
}
"""Of the media of question 0 of stream 1: the same on every machine."""


def num_objects(made: Made) -> int:
    """Connected areas of a picture."""
    lit = pixels(made.media[0]).any(axis=2)
    todo, count = {(int(y), int(x)) for y, x in numpy.argwhere(lit)}, 0
    while todo:
        count += 1
        waiting = [todo.pop()]
        while waiting:
            y, x = waiting.pop()
            near = {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & todo
            todo -= near
            waiting += near
    return count


@pytest.mark.parametrize("size", [32, 64, 224])
def test_the_shapes_of_a_picture_are_as_many_as_the_answer_says(size: int) -> None:
    task = ShapesTask(kind="shapes", size=size, questions=("count",), shapes=("circle", "square", "triangle"))
    answers: Counter[int] = Counter()
    for index in range(100):
        made = task.make(chance(index))
        assert made.text == "How many shapes?"
        assert num_objects(made) == int(made.answer)
        answers[int(made.answer)] += 1
    assert set(answers) == {0, 1, 2, 3, 4} and max(answers.values()) < 40


def test_colours_and_shapes_are_told_apart_by_what_is_in_the_picture() -> None:
    task = ShapesTask(kind="shapes", size=64, questions=("colour",), colours=("red", "blue"))
    channels = {"red": 0, "blue": 2}
    for index in range(60):
        made = task.make(chance(index))
        colour = made.text.split()[2]
        only = pixels(made.media[0]).copy()
        only[..., [channel for channel in range(3) if channel != channels[colour]]] = 0
        assert num_objects(Made((Image(64, 64, only.tobytes()),), "", "")) == int(made.answer)


def test_of_the_two_shapes_that_are_compared_there_are_not_as_many() -> None:
    task = ShapesTask(kind="shapes", questions=("compare",))
    made = [task.make(chance(index)) for index in range(200)]
    assert {each.text for each in made} == {"More circles or squares?", "More squares or circles?"}
    answers = Counter(each.answer for each in made)
    assert set(answers) == {"circles", "squares"} and min(answers.values()) > 70
    first = Counter(each.text.split()[1] == each.answer for each in made)
    assert min(first.values()) > 70, "the first one named is not always the answer"


def test_the_sum_of_the_digits_is_that_of_their_pictures() -> None:
    digits = load_digits()
    known = {
        (image * 255 // 16).astype(numpy.uint8).tobytes(): int(n)
        for image, n in zip(digits.images.astype(int), digits.target, strict=True)
    }
    for layout, scale in (("one", 1), ("several", 3)):
        task = DigitsTask(kind="digits", num_digits=3, scale=scale, layout=layout)  # type: ignore[arg-type]
        for index in range(50):
            made = task.make(Chance((index, 0)))
            shown = numpy.concatenate([pixels(image) for image in made.media], axis=1)[::scale, ::scale, 0]
            assert shown.shape == (8, 24)
            total = sum(known[numpy.ascontiguousarray(shown[:, 8 * n : 8 * n + 8]).tobytes()] for n in range(3))
            assert made.answer == str(total) and made.text == "What is the sum of the digits?"


def test_no_digit_of_an_evaluation_is_one_to_train_on() -> None:
    one = DigitsTask(kind="digits", num_digits=1, scale=1)
    trained, held_out = (
        {one.make(Chance((seed, index))).media for index in range(3_000)} for seed in (5, HELD_OUT_STREAMS + 5)
    )
    assert not trained & held_out and len(held_out) > 150 and len(trained) > 1_000


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"size": 16, "max_shapes": 5}, "5 shapes need a size of 24, got 16"),
        ({"shapes": ["circle"]}, "compare needs two of `shapes`"),
        ({"max_shapes": 1}, "compare needs two of `shapes`"),
        ({"colours": ["beige"]}, "colours"),
    ],
)
def test_pictures_that_cannot_be_made_are_refused_at_home(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ShapesTask.model_validate({"kind": "shapes", **settings})


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_a_question_is_recalled_scored_and_held_out_by_its_content(task: TaskConfig) -> None:
    check_recalled_scored_and_held_out(task)


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_other_media_or_another_setting_are_refused_by_name(task: TaskConfig) -> None:
    check_refused_by_name(task)


def test_media_are_the_same_in_every_process_and_on_every_machine() -> None:
    check_same_in_every_process(TASKS, DIGESTS)


def test_a_sandboxed_worker_makes_and_grades_them() -> None:
    check_made_in_a_sandbox(TASKS)


def test_what_a_policy_must_read_is_known_from_the_settings() -> None:
    assert [task.media for task in TASKS] == [{"image"}, {"image"}]


def test_a_members_tasks_are_the_founders() -> None:
    tasks = (*TASKS, ShapesTask(kind="shapes", name="many", size=64, max_shapes=9, find="whole", ask=""))
    assert from_specs(to_specs(tasks)) == tasks


def test_a_question_ends_with_what_it_asks_for() -> None:
    question = TaskMixture([SHAPES.model_copy(update={"ask": "In one word."})]).question(1, 0)
    assert not isinstance(question.prompt, str)
    ((image, text),) = (message.parts for message in question.prompt)
    assert isinstance(image, Image) and isinstance(text, Text) and text.text.endswith("?\nIn one word.")
