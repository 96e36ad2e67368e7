"""A maze whose observations are pictures: walked by hand, replayed by every verifier, bounded on the way back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from msgspec import DecodeError
from msgspec.structs import replace

from swarm.environments.config import VerificationSettings
from swarm.environments.mixture import TaskMixture
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.verification.inline import InlineVerifier
from swarm.environments.verification.messages import (
    MAX_OBSERVED_BYTES,
    Draw,
    Drawn,
    Graded,
    GradeGroup,
    decode_reply,
    encode,
    in_order,
    max_reply_bytes,
)
from swarm.environments.verification.pool import VerificationPool
from swarm.extras.pictures.tasks import MOVES, Maze, MazeTask
from swarm.protocols import Verifier
from swarm.types import Grade, Message, Observation, Question, Rejection, Terminal, Text, earned, media_of
from swarm.types.media import MAX_MEDIA, MAX_MEDIA_BYTES, Image

TASK = MazeTask(kind="maze")
SHOWS = {"maze": TASK.media}


def picture(observation: Observation | Terminal) -> Image:
    assert not isinstance(observation, Terminal)
    (image,) = (part for part in observation if isinstance(part, Image))
    return image


def place(image: Image, colour: int) -> tuple[int, int]:
    """The cell that is red (0) or green (1)."""
    pixels = numpy.frombuffer(image.pixels, numpy.uint8).reshape(image.height, image.width, 3)
    only = (pixels[..., colour] == 255) & (pixels.sum(axis=2) == 255)
    y, x = (int(axis.mean()) // TASK.cell for axis in only.nonzero())
    return x, y


def way_out(seed: int, index: int, task: MazeTask = TASK) -> list[str]:
    """The shortest way to the goal, found by walking."""
    ways: list[list[str]] = [[]]
    while True:
        way = ways.pop(0)
        for move in MOVES:
            maze = Maze(task)
            maze.reset(seed, index)
            answers = [maze.step(each) for each in (*way, move)]
            if isinstance(answers[-1], Terminal):
                return [*way, move]
            if Text("There is a wall.") not in answers[-1]:
                ways.append([*way, move])


def test_a_maze_is_walked_to_its_goal() -> None:
    for index in range(10):
        way = way_out(3, index)
        assert 1 <= len(way) <= TASK.farthest
        maze = Maze(TASK)
        seen = picture(maze.reset(3, index))
        assert (seen.width, seen.height) == (32, 32)
        for move in way[:-1]:
            before, seen = place(seen, 0), picture(maze.step(f"left? no: {move[0].upper()}."))
            across, down = MOVES[move]
            assert place(seen, 0) == (before[0] + across, before[1] + down)
        assert maze.step(way[-1]) == Terminal(1.0)


def test_walls_and_words_that_are_no_moves_leave_the_walker_where_it_is() -> None:
    maze = Maze(TASK)
    start = picture(maze.reset(3, 1))
    assert maze.step("I wait") == (Text("Say left, right, up or down."), start)
    answers = [Maze(TASK) for _ in MOVES]
    for each in answers:
        each.reset(3, 1)
    said = [each.step(move) for each, move in zip(answers, MOVES, strict=True)]
    assert (Text("There is a wall."), start) in said


def test_coming_nearer_earns_a_part_of_the_return_once() -> None:
    task = MazeTask(kind="maze", progress=0.5)
    index = next(index for index in range(99) if len(way_out(3, index, task)) == 4)
    way = way_out(3, index, task)
    back = {"left": "right", "right": "left", "up": "down", "down": "up"}[way[0]]
    maze = Maze(task)
    maze.reset(3, index)
    rewards = []
    for move in (way[0], back, *way):
        answer = maze.step(move)
        rewards.append(answer.reward if isinstance(answer, Terminal) else earned(answer))
    assert rewards == [0.125, 0, 0, 0.125, 0.125, 0.625]


@pytest.fixture(scope="module", params=["inline", "pool"])
def verifier(request: pytest.FixtureRequest) -> Iterator[Verifier]:
    made: Verifier = InlineVerifier([TASK])
    if request.param == "pool":
        made = VerificationPool([TASK], VerificationSettings())
    yield made
    made.close()


def test_a_group_is_replayed_with_its_pictures(verifier: Verifier) -> None:
    (question,) = verifier.draw(7, 2, 1)
    (message,) = question.prompt
    assert isinstance(message, Message) and question.max_turns == 6 and question.ref.media
    way = tuple(way_out(7, 2))
    grade = verifier.begin_grading(question.ref, [way, ("wait", *way), "wait"]).result()
    assert isinstance(grade, Grade) and grade.rewards == (1.0, 1.0, 0.0)
    assert media_of(question.prompt) == (picture(grade.observed(1)[0]),)
    (refused,) = verifier.grade([(replace(question.ref, media="0" * 32), ["wait"])])
    assert isinstance(refused, Rejection) and refused.reason == "media_mismatch"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"farthest": 7}, "max_turns must be at least farthest, 7, got 6"),
        ({"side": 32, "cell": 64}, "bytes, more than"),
    ],
)
def test_a_maze_that_cannot_be_shown_or_walked_is_refused_at_home(settings: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        MazeTask.model_validate({"kind": "maze", **settings})


def test_all_settings_are_in_the_manifest() -> None:
    other = MazeTask(kind="maze", side=3, progress=0.5)
    assert from_specs(to_specs([other])) == (other,)
    refused = TaskMixture([other]).grade(TaskMixture([TASK]).question(1, 0).ref, ["left"])
    assert isinstance(refused, Rejection) and refused.reason == "options_differ"


SMALL = Image(1, 1, b"\0\0\0")


def test_no_worker_can_make_up_pictures_that_its_task_does_not_have() -> None:
    question = TaskMixture([TASK]).question(1, 0)
    tasks: dict[str, tuple[str, ...]] = {"maze": ()}
    assert in_order(Draw(1, 0), Drawn(question, {}), tasks, SHOWS)
    assert not in_order(Draw(1, 0), Drawn(question, {}), tasks)

    def with_image(*images: Image) -> Drawn:
        return Drawn(Question(question.ref, (Message("user", images),)), {})

    assert in_order(Draw(1, 0), with_image(*[SMALL] * MAX_MEDIA), tasks, SHOWS)
    for bad in (
        (replace(SMALL, pixels=b"\0\0"),),
        (replace(SMALL, width=2),),
        (SMALL,) * (MAX_MEDIA + 1),
        (Image(2_048, 2_048, bytes(3 * 2_048**2)),) * 2,
    ):
        assert not in_order(Draw(1, 0), with_image(*bad), tasks, SHOWS)
    for field, value in (("width", 0), ("width", 5_000), ("pixels", b"")):
        with pytest.raises(DecodeError):
            decode_reply(encode(with_image(replace(SMALL, **{field: value}))))


def test_observations_of_a_group_are_bounded_in_number_and_bytes() -> None:
    question = TaskMixture([TASK]).question(1, 0)
    large = Image(1_024, 1_024, bytes(3 * 2**20))

    def accepts(num_episodes: int, *observations: Observation) -> bool:
        request = GradeGroup(question.ref, (("wait",) * len(observations),) * num_episodes)
        grade = Grade(question.prompt, (0.0,) * num_episodes, 0.0, (observations,) * num_episodes)
        return in_order(request, Graded(grade, {}), {"maze": ()}, SHOWS)

    assert accepts(4, (SMALL,) * MAX_MEDIA) and not accepts(4, (SMALL,) * (MAX_MEDIA + 1))
    assert accepts(1, *[(large,)] * 5) and not accepts(1, *[(large,)] * 6), "an episode"
    assert accepts(4, *[(large,)] * 5) and not accepts(5, *[(large,)] * 5), "a group"
    assert 20 * 3 * 2**20 <= MAX_OBSERVED_BYTES < max_reply_bytes(SHOWS)
    assert max_reply_bytes({"sums": frozenset()}) == 2**24 < MAX_MEDIA_BYTES + MAX_OBSERVED_BYTES
