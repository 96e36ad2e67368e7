"""Tasks of generated pictures: shapes to count, handwritten digits to add, a maze to walk."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import numpy
import numpy.typing
from pydantic import Field, model_validator

from swarm.distribution import how_to_install
from swarm.environments.config import Context, TaskName
from swarm.environments.decoding.pixels import COLOURS, ColourName, Pixels, ShapeName, add_shape, as_image, blank
from swarm.environments.digests import Chance, draw
from swarm.environments.episodes.source import EnvironmentTask
from swarm.environments.sources.generated import GeneratedTask, Made
from swarm.errors import TaskError
from swarm.protocols import Environment, TaskSource
from swarm.types import HELD_OUT_STREAMS, MAX_TURNS, Observation, StepReward, Terminal, Text
from swarm.types.media import MAX_MEDIA_BYTES, Image, Modality

ShapesQuestion = Literal["count", "shape", "colour", "both", "compare"]
Shapes = Annotated[tuple[ShapeName, ...], Field(min_length=1, max_length=3)]
Colours = Annotated[tuple[ColourName, ...], Field(min_length=1, max_length=6)]
Drawn = tuple[ShapeName, ColourName]


class ShapesTask(GeneratedTask):
    """Pictures with coloured shapes, to count and to compare. None touch."""

    shows = frozenset[Modality]({"image"})

    kind: Literal["shapes"]
    name: TaskName = "shapes"
    """Name in this run."""
    size: int = Field(32, ge=16, le=1_024)
    """Pixels of a side."""
    max_shapes: int = Field(4, ge=1, le=64)
    """Shapes in a picture; as many squares of equal size, each with at most one, must have 8 pixels a side."""
    shapes: Shapes = ("circle", "square")
    """`circle`, `square` and `triangle`."""
    colours: Colours = ("red", "green", "blue")
    """`red`, `green`, `blue`, `yellow`, `white` and `purple`, on black."""
    questions: tuple[ShapesQuestion, ...] = Field(("count", "shape", "colour", "both", "compare"), min_length=1)
    """One of them is asked: how many shapes there are (`count`), how many of a `shape`, of a `colour`, or of `both`; or
    of which of two shapes there are more (`compare`). Numbers are equally likely, as far as there is room."""

    @property
    def columns(self) -> int:
        """Squares in a row, and rows."""
        return next(side for side in range(1, 9) if side * side >= self.max_shapes)

    @model_validator(mode="after")
    def _there_is_room_and_something_to_ask(self) -> ShapesTask:
        if self.size // self.columns < 8:
            raise ValueError(f"{self.max_shapes} shapes need a size of {8 * self.columns}, got {self.size}")
        if "compare" in self.questions and (len(set(self.shapes)) < 2 or self.max_shapes < 2):
            raise ValueError("questions: compare needs two of `shapes`, and max_shapes of at least 2")
        return self

    def make(self, chance: Chance) -> Made:
        """A picture and a question about it."""
        asked = chance.one_of(self.questions, "question")
        everything: list[Drawn] = list(product(self.shapes, self.colours))
        if asked == "compare":
            return _compared(self, chance, everything)
        shape, colour = chance.one_of(self.shapes, "shape"), chance.one_of(self.colours, "colour")
        match asked:
            case "count":
                wanted, what = everything, "shapes"
            case "shape":
                wanted, what = [each for each in everything if each[0] == shape], f"{shape}s"
            case "colour":
                wanted, what = [each for each in everything if each[1] == colour], f"{colour} shapes"
            case "both":
                wanted, what = [(shape, colour)], f"{colour} {shape}s"
        others = [each for each in everything if each not in wanted]
        count = chance.number(0, self.max_shapes, "count")
        num_others = chance.number(0, self.max_shapes - count, "others") if others else 0
        shown = [*_some(chance, wanted, count, "wanted"), *_some(chance, others, num_others, "other")]
        return Made((_picture(self, chance, shown),), f"How many {what}?", str(count))


def _compared(task: ShapesTask, chance: Chance, everything: Sequence[Drawn]) -> Made:
    """More of one shape than of another."""
    more, less, *_ = chance.shuffled(tuple(dict.fromkeys(task.shapes)), "compared")
    count = chance.number(1, task.max_shapes, "count")
    fewer = chance.number(0, min(count - 1, task.max_shapes - count), "fewer")
    mores, lesses = ([each for each in everything if each[0] == shape] for shape in (more, less))
    shown = [*_some(chance, mores, count, "more"), *_some(chance, lesses, fewer, "less")]
    first, second = chance.shuffled((more, less), "order")
    return Made((_picture(task, chance, shown),), f"More {first}s or {second}s?", f"{more}s")


def _some(chance: Chance, choices: Sequence[Drawn], count: int, what: str) -> list[Drawn]:
    return [chance.one_of(choices, what, number) for number in range(count)]


def _picture(task: ShapesTask, chance: Chance, shown: Sequence[Drawn]) -> Image:
    """Each shape in a separate square, of random size and position."""
    pixels, cell = blank(task.size, task.size), task.size // task.columns
    squares = chance.shuffled(list(product(range(task.columns), repeat=2)), "places")
    for number, ((shape, colour), (column, row)) in enumerate(zip(shown, squares, strict=False)):
        side = chance.number(cell * 5 // 8, cell * 7 // 8, "side", number)
        x, y = (chance.number(1, cell - side, axis, number) for axis in ("x", "y"))  # neighbours do not touch
        add_shape(pixels, shape, colour, column * cell + x, row * cell + y, side)
    return as_image(pixels)


HELD_OUT_EVERY = 10
LEVELS = 16
"""The brightest level of grey."""


class Digits(NamedTuple):
    """scikit-learn's handwritten digits."""

    pictures: numpy.typing.NDArray[numpy.int64]
    """[1797, 8, 8] levels of grey."""
    values: tuple[int, ...]
    held_out: list[int]
    """Indices of those only in questions for evaluation."""
    trained: list[int]


@cache
def digits() -> Digits:
    """The digits. Raises `TaskError` without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise TaskError(f"a task of the kind digits needs scikit-learn ({error}): {how_to_install('media')}") from error
    loaded = load_digits()
    values = tuple(map(int, loaded.target))
    for_evaluation = [draw(HELD_OUT_EVERY, "digits", number) == 0 for number in range(len(values))]
    held_out, trained = (
        [number for number, held in enumerate(for_evaluation) if held == wanted] for wanted in (True, False)
    )
    return Digits(loaded.images.astype(numpy.int64), values, held_out, trained)


class DigitsTask(GeneratedTask):
    """Handwritten digits to add: 8 x 8 pixels each in 17 levels of grey, from scikit-learn, which the extra `media`
    installs. Every tenth digit is only in questions for evaluation."""

    shows = frozenset[Modality]({"image"})
    has_own_streams = True

    kind: Literal["digits"]
    name: TaskName = "digits"
    """Name in this run."""
    num_digits: int = Field(2, ge=1, le=16)
    """Digits of a question."""
    scale: int = Field(2, ge=1, le=32)
    """Pixels of the picture for each of a digit's, across and down."""
    layout: Literal["one", "several"] = "one"
    """`one` picture with the digits side by side, or `several` with one each."""

    def make(self, chance: Chance) -> Made:
        """Some digits, of those that streams of the question's kind have, and their sum."""
        *_, seed, _ = chance.key
        assert isinstance(seed, int)
        data = digits()
        known = data.held_out if seed >= HELD_OUT_STREAMS else data.trained
        chosen = [chance.one_of(known, "digit", position) for position in range(self.num_digits)]
        drawn = [_drawn(data.pictures[number], self.scale) for number in chosen]
        pictures = drawn if self.layout == "several" else [numpy.concatenate(drawn, axis=1)]
        what = "What is the sum of the digits?" if self.num_digits > 1 else "Which digit is this?"
        return Made(tuple(map(as_image, pictures)), what, str(sum(data.values[number] for number in chosen)))

    def source(self, context: Context) -> TaskSource:
        """See `QuestionSettings`."""
        digits()
        return super().source(context)

    def import_libraries(self) -> None:
        """See `TaskSettings`."""
        super().import_libraries()
        digits()


def _drawn(levels: numpy.typing.NDArray[numpy.int64], scale: int) -> Pixels:
    """White on black, each level of grey a block of pixels."""
    greys = (levels * 255 // LEVELS).astype(numpy.uint8)
    pixels: Pixels = greys.repeat(scale, axis=0).repeat(scale, axis=1)[..., None].repeat(3, axis=2)
    return pixels


Cell = tuple[int, int]
"""Column and row."""

MOVES: Mapping[str, Cell] = MappingProxyType({"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)})
_BY_LETTER = {name[0]: name for name in MOVES}
_SAID = re.compile(r"\b(left|right|up|down|[lrud])\b", re.IGNORECASE)


class MazeTask(EnvironmentTask):
    """Walk through a maze that is shown after each move. Reward 1 for reaching the goal, else 0."""

    shows = frozenset[Modality]({"image"})

    kind: Literal["maze"]
    name: TaskName = "maze"
    """Name in this run."""
    max_turns: int = Field(6, ge=1, le=MAX_TURNS)
    """Moves, those against walls included."""
    side: int = Field(4, ge=2, le=32)
    """Cells of a row, and rows."""
    cell: int = Field(8, ge=4, le=64)
    """Pixels of a cell's side; walls take one of them on each side."""
    farthest: int = Field(4, ge=1, le=MAX_TURNS)
    """Most moves from the start to the goal."""
    progress: float = Field(0.0, ge=0, le=1)
    """Part of the return that moves earn by coming nearer to the goal than ever before; see `update.credit`."""

    @model_validator(mode="after")
    def _the_goal_can_be_reached_and_shown(self) -> MazeTask:
        if self.farthest > self.max_turns:
            raise ValueError(f"max_turns must be at least farthest, {self.farthest}, got {self.max_turns}")
        if (num_bytes := self.max_turns * (self.side * self.cell) ** 2 * 3) > MAX_MEDIA_BYTES:
            raise ValueError(f"an episode's pictures have up to {num_bytes} bytes, more than {MAX_MEDIA_BYTES}")
        return self

    def environments(self, context: Context) -> Callable[[], Environment]:
        """See `EnvironmentTask`."""
        return lambda: Maze(self)


class Maze:
    """Walls are white, the walker is red, the goal green. The return is 1 for the goal.

    The last direction in a turn counts, as a word or its first letter. `progress` is the part of the return that moves
    earn by coming nearer than ever before, in proportion.
    """

    def __init__(self, task: MazeTask) -> None:
        """Call `reset` first."""
        self._task = task

    def reset(self, seed: int, index: int) -> Observation:
        """Build a maze. See `Environment`."""
        chance = Chance(("maze", seed, index))
        cells = [(column, row) for row in range(self._task.side) for column in range(self._task.side)]
        self._open = _dug(self._task.side, chance)
        self._goal = chance.one_of(cells, "goal")
        self._distances = self._measured()
        near = [cell for cell in cells if 1 <= self._distances[cell] <= self._task.farthest]
        self._here = chance.one_of(near, "start")
        self._first = self._nearest = self._distances[self._here]
        return (as_image(self._picture()), Text("Walk from red to green: left, right, up or down."))

    def step(self, action: str) -> Observation | Terminal:
        """Move. See `Environment`."""
        said = _SAID.findall(action)
        if not said:
            return (Text("Say left, right, up or down."), as_image(self._picture()))
        word = said[-1].lower()
        there = _next(self._here, _BY_LETTER.get(word, word))
        if there not in self._open[self._here]:
            return (Text("There is a wall."), as_image(self._picture()))
        self._here = there
        gained = max(0, self._nearest - self._distances[there])
        self._nearest -= gained
        earned = self._task.progress * gained / self._first
        if there == self._goal:
            return Terminal(1 - self._task.progress + earned)
        seen = as_image(self._picture())
        return (seen, StepReward(earned)) if earned else (seen,)

    def _measured(self) -> dict[Cell, int]:
        """Moves from each cell to the goal."""
        distances, border = {self._goal: 0}, [self._goal]
        while border:
            border = [there for here in border for there in sorted(self._open[here]) if there not in distances]
            distances |= dict.fromkeys(border, max(distances.values()) + 1)
        return distances

    def _picture(self) -> Pixels:
        cell = self._task.cell
        pixels = blank(*2 * [self._task.side * cell])
        for (column, row), neighbours in self._open.items():
            square = pixels[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell]
            walls = {"left": square[:, 0], "right": square[:, -1], "up": square[0], "down": square[-1]}
            for name, wall in walls.items():
                if _next((column, row), name) not in neighbours:
                    wall[:] = COLOURS["white"]
        for corner, colour in ((self._goal, COLOURS["green"]), (self._here, COLOURS["red"])):
            x, y = corner[0] * cell, corner[1] * cell
            pixels[y + 2 : y + cell - 1, x + 2 : x + cell - 1] = colour
        return pixels


def _next(cell: Cell, move: str) -> Cell:
    across, down = MOVES[move]
    return cell[0] + across, cell[1] + down


def _dug(side: int, chance: Chance) -> dict[Cell, set[Cell]]:
    """Which neighbours each cell is open to: one way between any two cells, dug by a walk that turns back at dead
    ends."""
    open_to: dict[Cell, set[Cell]] = {(0, 0): set()}
    path = [(0, 0)]
    while path:
        here = path[-1]
        around = [_next(here, move) for move in MOVES]
        new = [cell for cell in around if cell not in open_to and min(cell) >= 0 and max(cell) < side]
        if not new:
            path.pop()
            continue
        there = chance.one_of(new, "dig", *here, len(new))
        open_to[here].add(there)
        open_to[there] = {here}
        path.append(there)
    return open_to
