"""Questions with pictures, sounds and clips that are made from a seed: right, balanced, the same in every process."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import closing

import numpy
import numpy.typing
import pytest
from msgspec.structs import replace
from sklearn.datasets import load_digits

from swarm.environments.config import TASK_LIST, TaskConfig, VerificationSettings
from swarm.environments.digests import Chance
from swarm.environments.mixture import TaskMixture
from swarm.environments.sources.generated import Made
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.verification.pool import VerificationPool
from swarm.extras.audio_video.clip import ClipTask, make_clip
from swarm.extras.audio_video.tones import TonesTask, make_tones
from swarm.extras.pictures.digits import DigitsTask, make_digits
from swarm.extras.pictures.shapes import ShapesTask, make_shapes
from swarm.types import HELD_OUT_STREAMS, Grade, ProceduralRef, Rejection, Text, media_of
from swarm.types.media import Audio, Image, Video, media_problem

SHAPES = ShapesTask(kind="shapes")
DIGITS, TONES, CLIP = DigitsTask(kind="digits"), TonesTask(kind="tones"), ClipTask(kind="clip")
TASKS: dict[str, TaskConfig] = {"shapes": SHAPES, "digits": DIGITS, "tones": TONES, "clip": CLIP}
DIGESTS = {
    "shapes": "54d8d002e1fada7e2221f8dfe7de771d",
    "digits": "e30195ed846fa9354fae5e88c9b2482d",
    "tones": "681a5cc4a4159dedacc095f17ba6bac5",
    "clip": "49c0b2cdfc3c7b78f209565dbbbdeb10",
}
"""Of the media of question 0 of stream 1: the same on every machine."""


def chance(index: int) -> Chance:
    return Chance(("test", index))


def pixels(image: object) -> numpy.typing.NDArray[numpy.uint8]:
    assert isinstance(image, Image)
    return numpy.frombuffer(image.pixels, numpy.uint8).reshape(image.height, image.width, 3)


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
        made = make_shapes(task, chance(index))
        assert made.text == "How many shapes?"
        assert num_objects(made) == int(made.answer)
        answers[int(made.answer)] += 1
    assert set(answers) == {0, 1, 2, 3, 4} and max(answers.values()) < 40


def test_colours_and_shapes_are_told_apart_by_what_is_in_the_picture() -> None:
    task = ShapesTask(kind="shapes", size=64, questions=("colour",), colours=("red", "blue"))
    channels = {"red": 0, "blue": 2}
    for index in range(60):
        made = make_shapes(task, chance(index))
        colour = made.text.split()[2]
        only = pixels(made.media[0]).copy()
        only[..., [channel for channel in range(3) if channel != channels[colour]]] = 0
        assert num_objects(Made((Image(64, 64, only.tobytes()),), "", "")) == int(made.answer)


def test_of_the_two_shapes_that_are_compared_there_are_not_as_many() -> None:
    task = ShapesTask(kind="shapes", questions=("compare",))
    made = [make_shapes(task, chance(index)) for index in range(200)]
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
            made = make_digits(task, Chance((index, 0)))
            shown = numpy.concatenate([pixels(image) for image in made.media], axis=1)[::scale, ::scale, 0]
            assert shown.shape == (8, 24)
            total = sum(known[numpy.ascontiguousarray(shown[:, 8 * n : 8 * n + 8]).tobytes()] for n in range(3))
            assert made.answer == str(total) and made.text == "What is the sum of the digits?"


def test_no_digit_of_an_evaluation_is_one_to_train_on() -> None:
    one = DigitsTask(kind="digits", num_digits=1, scale=1)
    trained, held_out = (
        {make_digits(one, Chance((seed, index))).media for index in range(3_000)} for seed in (5, HELD_OUT_STREAMS + 5)
    )
    assert not trained & held_out and len(held_out) > 150 and len(trained) > 1_000


def heard(made: Made) -> tuple[numpy.typing.NDArray[numpy.int16], int]:
    (sound,) = made.media
    assert isinstance(sound, Audio)
    return numpy.frombuffer(sound.samples, "<i2"), sound.rate


def notes(made: Made, beat: int) -> list[numpy.typing.NDArray[numpy.int16]]:
    """The tones between the pauses."""
    samples, _ = heard(made)
    beats = samples.reshape(-1, beat)
    lit, found = [bool(each.any()) for each in beats], []
    for number, sounds in enumerate(lit):
        if sounds and not lit[number - 1]:
            end = lit.index(False, number)
            found.append(beats[number:end].reshape(-1))
    return found


def test_what_is_asked_of_a_sound_is_heard_in_it() -> None:
    for question in ("highest", "beeps", "rhythm"):
        task = TonesTask(kind="tones", questions=(question,))  # type: ignore[arg-type]
        answers = Counter()
        for index in range(80):
            made = make_tones(task, chance(index))
            tones = notes(made, task.beat)
            strongest = [int(abs(numpy.fft.rfft(tone)).argmax()) * task.rate // len(tone) for tone in tones]
            told = {
                "highest": ("first", "second", "third")[strongest.index(max(strongest))] if len(tones) == 3 else "",
                "beeps": str(len(tones)),
                "rhythm": "-".join("long" if len(tone) == 3 * task.beat else "short" for tone in tones),
            }
            assert made.answer == told[question]
            answers[made.answer] += 1
        assert len(answers) == {"highest": 3, "beeps": 5, "rhythm": 8}[question]


def middles(made: Made) -> list[tuple[float, float]]:
    """Where what is bright is, frame by frame."""
    (clip,) = made.media
    assert isinstance(clip, Video)
    frames = numpy.frombuffer(clip.frames, numpy.uint8).reshape(clip.num_frames, clip.height, clip.width, 3)
    return [tuple(float(axis.mean()) for axis in frame.any(axis=2).nonzero()[::-1]) for frame in frames]  # type: ignore[misc]


def test_what_is_asked_of_a_clip_is_seen_in_it() -> None:
    task = ClipTask(kind="clip", questions=("direction",))
    for index in range(60):
        made = make_clip(task, chance(index))
        (x, y), *_, (last_x, last_y) = middles(made)
        told = {"left": x - last_x, "right": last_x - x, "up": y - last_y, "down": last_y - y}
        assert made.answer == max(told, key=lambda way: told[way]) and max(told.values()) > 15
    task = ClipTask(kind="clip", questions=("bounces",), num_frames=33)
    for index in range(60):
        made = make_clip(task, chance(index))
        places = [sum(each) for each in middles(made)]
        moves = [later - earlier for earlier, later in zip(places, places[1:], strict=False)]
        turns = sum(now * before < 0 for before, now in zip(moves, moves[1:], strict=False) if now and before)
        assert abs(turns - int(made.answer)) <= 1 and (made.answer == "0") == (not any(moves))
    answers = Counter(make_clip(ClipTask(kind="clip", questions=("which",)), chance(n)).answer for n in range(90))
    assert set(answers) == {"circle", "square", "triangle"} and min(answers.values()) > 15


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


@pytest.mark.parametrize("name", TASKS)
def test_a_question_is_recalled_scored_and_held_out_by_its_content(name: str) -> None:
    mixture = TaskMixture([TASKS[name]])
    seen: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}
    for seed in (1, HELD_OUT_STREAMS + 1):
        for index in range(60):
            question = mixture.question(seed, index)
            assert isinstance(question.ref, ProceduralRef)
            assert media_problem(media_of(question.prompt)) is None and question.ref.media
            assert mixture.recall(question.ref) == question
            grade = mixture.grade(question.ref, ["<answer>no idea</answer>", "nothing"])
            assert isinstance(grade, Grade) and grade.rewards == (0.0, 0.0)
            assert grade.held_out == (seed >= HELD_OUT_STREAMS)
            seen[grade.held_out].add((question.ref.question_hash, question.ref.media))
    assert not seen[True] & seen[False]


@pytest.mark.parametrize("name", TASKS)
def test_another_picture_or_another_setting_is_refused_by_name(name: str) -> None:
    mixture = TaskMixture([TASKS[name]])
    ref = mixture.question(1, 0).ref
    for change, reason in (
        ({"media": "0" * 32}, "media_mismatch"),
        ({"question_hash": "0" * 32}, "question_mismatch"),
        ({"options_digest": "0" * 32}, "options_differ"),
        ({"task": "other"}, "unknown_task"),
    ):
        refused = mixture.grade(replace(ref, **change), ["x"])
        assert isinstance(refused, Rejection) and refused.reason == reason


def test_media_are_the_same_in_every_process_and_on_every_machine() -> None:
    code = (
        "import sys\nfrom swarm.environments.config import TASK_LIST\n"
        "from swarm.environments.mixture import TaskMixture\n"
        "for task in TASK_LIST.validate_json(sys.argv[1]):\n"
        "    print(TaskMixture([task]).question(1, 0).ref.media)"
    )
    tasks = tuple(TASKS.values())
    said = subprocess.check_output([sys.executable, "-c", code, TASK_LIST.dump_json(tasks).decode()], text=True)
    assert dict(zip(TASKS, said.split(), strict=True)) == DIGESTS


def test_a_members_tasks_are_the_founders() -> None:
    tasks = (*TASKS.values(), ShapesTask(kind="shapes", name="many", size=64, max_shapes=9, find="whole", ask=""))
    assert from_specs(to_specs(tasks)) == tasks


def test_a_sandboxed_worker_makes_and_grades_them() -> None:
    here = TaskMixture(list(TASKS.values()))
    with closing(VerificationPool(list(TASKS.values()), VerificationSettings())) as pool:
        for name in TASKS:
            (question,) = pool.draw(5, 3, 1, name)
            assert question == here.question(5, 3, task=name)
            (grade,) = pool.grade([(question.ref, ["<answer>no idea</answer>"])])
            assert isinstance(grade, Grade) and grade.prompt == question.prompt
        assert pool.unprotected() == {}


def test_what_a_policy_must_read_is_known_from_the_settings() -> None:
    assert [each.media for each in (SHAPES, DIGITS, TONES, CLIP)] == [
        {"image"}, {"image"}, {"audio"}, {"video"},
    ]  # fmt: skip


def test_a_question_ends_with_what_it_asks_for() -> None:
    question = TaskMixture([SHAPES.model_copy(update={"ask": "In one word."})]).question(1, 0)
    assert not isinstance(question.prompt, str)
    ((image, text),) = (message.parts for message in question.prompt)
    assert isinstance(image, Image) and isinstance(text, Text) and text.text.endswith("?\nIn one word.")
