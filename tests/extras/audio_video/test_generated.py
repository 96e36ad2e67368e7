"""Questions with sounds and clips that are made from a seed: right, balanced, the same in every process."""

from __future__ import annotations

from collections import Counter

import numpy
import numpy.typing
import pytest

from swarm.environments.config import TaskConfig
from swarm.environments.sources.generated import Made
from swarm.environments.specs import from_specs, to_specs
from swarm.extras.audio_video.tasks import ClipTask, TonesTask
from swarm.types.media import Audio, Video
from tests.environments.generated import (
    chance,
    check_made_in_a_sandbox,
    check_recalled_scored_and_held_out,
    check_refused_by_name,
    check_same_in_every_process,
)

TONES, CLIP = TonesTask(kind="tones"), ClipTask(kind="clip")
TASKS: tuple[TaskConfig, ...] = (TONES, CLIP)
DIGESTS = {
    "tones": "681a5cc4a4159dedacc095f17ba6bac5",
    "clip": "49c0b2cdfc3c7b78f209565dbbbdeb10",
}
"""Of the media of question 0 of stream 1: the same on every machine."""


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
            made = task.make(chance(index))
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
        made = task.make(chance(index))
        (x, y), *_, (last_x, last_y) = middles(made)
        told = {"left": x - last_x, "right": last_x - x, "up": y - last_y, "down": last_y - y}
        assert made.answer == max(told, key=lambda way: told[way]) and max(told.values()) > 15
    task = ClipTask(kind="clip", questions=("bounces",), num_frames=33)
    for index in range(60):
        made = task.make(chance(index))
        places = [sum(each) for each in middles(made)]
        moves = [later - earlier for earlier, later in zip(places, places[1:], strict=False)]
        turns = sum(now * before < 0 for before, now in zip(moves, moves[1:], strict=False) if now and before)
        assert abs(turns - int(made.answer)) <= 1 and (made.answer == "0") == (not any(moves))
    answers = Counter(ClipTask(kind="clip", questions=("which",)).make(chance(n)).answer for n in range(90))
    assert set(answers) == {"circle", "square", "triangle"} and min(answers.values()) > 15


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
    assert [task.media for task in TASKS] == [{"audio"}, {"video"}]


def test_a_members_tasks_are_the_founders() -> None:
    assert from_specs(to_specs(TASKS)) == TASKS
