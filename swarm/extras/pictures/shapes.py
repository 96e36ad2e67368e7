"""Pictures with coloured shapes, to count and to compare."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Annotated, Literal

from pydantic import Field, model_validator

from swarm.environments.config import TaskName
from swarm.environments.decoding.pixels import ColourName, ShapeName, add_shape, as_image, blank
from swarm.environments.digests import Chance
from swarm.environments.sources.generated import GeneratedTask, Made
from swarm.types.media import Image, Modality

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
