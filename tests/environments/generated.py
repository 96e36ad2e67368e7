"""What every task whose questions are made from a seed must hold, for tests of such tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy
import numpy.typing
from msgspec.structs import replace

from swarm.environments.config import TASK_LIST, TaskConfig, VerificationSettings
from swarm.environments.digests import Chance
from swarm.environments.mixture import TaskMixture
from swarm.environments.verification.pool import VerificationPool
from swarm.types import HELD_OUT_STREAMS, Grade, ProceduralRef, Rejection, media_of
from swarm.types.media import Image, media_problem


def chance(index: int) -> Chance:
    return Chance(("test", index))


def pixels(image: object) -> numpy.typing.NDArray[numpy.uint8]:
    assert isinstance(image, Image)
    return numpy.frombuffer(image.pixels, numpy.uint8).reshape(image.height, image.width, 3)


def check_recalled_scored_and_held_out(task: TaskConfig) -> None:
    """A question is recalled, scored and held out by its content."""
    mixture = TaskMixture([task])
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


def check_refused_by_name(task: TaskConfig) -> None:
    """A question with other media or other settings is refused by name."""
    mixture = TaskMixture([task])
    ref = mixture.question(1, 0).ref
    for change, reason in (
        ({"media": "0" * 32}, "media_mismatch"),
        ({"question_hash": "0" * 32}, "question_mismatch"),
        ({"options_digest": "0" * 32}, "options_differ"),
        ({"task": "other"}, "unknown_task"),
    ):
        refused = mixture.grade(replace(ref, **change), ["x"])
        assert isinstance(refused, Rejection) and refused.reason == reason


def check_same_in_every_process(tasks: Sequence[TaskConfig], digests: Mapping[str, str]) -> None:
    """`digests` are those of the media of question 0 of stream 1."""
    code = (
        "import sys\nfrom swarm.environments.config import TASK_LIST\n"
        "from swarm.environments.mixture import TaskMixture\n"
        "for task in TASK_LIST.validate_json(sys.argv[1]):\n"
        "    print(TaskMixture([task]).question(1, 0).ref.media)"
    )
    said = subprocess.check_output([sys.executable, "-c", code, TASK_LIST.dump_json(tuple(tasks)).decode()], text=True)
    assert dict(zip([task.name for task in tasks], said.split(), strict=True)) == digests


def check_made_in_a_sandbox(tasks: Sequence[TaskConfig]) -> None:
    """A sandboxed worker makes and grades them."""
    here = TaskMixture(tasks)
    with closing(VerificationPool(tasks, VerificationSettings())) as pool:
        for name in [task.name for task in tasks]:
            (question,) = pool.draw(5, 3, 1, name)
            assert question == here.question(5, 3, task=name)
            (grade,) = pool.grade([(question.ref, ["<answer>no idea</answer>"])])
            assert isinstance(grade, Grade) and grade.prompt == question.prompt
        assert pool.unprotected() == {}
