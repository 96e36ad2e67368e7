"""Settings of tasks whose pictures, sounds and clips are made from a seed."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from swarm.environments.answering import QuestionSettings, RewardSettings
from swarm.environments.fields import TaskName, Weight
from swarm.types.media import Modality

ShapeName = Literal["circle", "square", "triangle"]
ColourName = Literal["red", "green", "blue", "yellow", "white", "purple"]
ShapesQuestion = Literal["count", "shape", "colour", "both", "compare"]
Shapes = Annotated[tuple[ShapeName, ...], Field(min_length=1, max_length=3)]
Colours = Annotated[tuple[ColourName, ...], Field(min_length=1, max_length=6)]


class GeneratedTask(QuestionSettings):
    """What these tasks have: a question is a function of the seed, its number and these settings."""

    shows: ClassVar[frozenset[Modality]]
    """What its questions have besides text."""

    kind: str
    name: TaskName
    """Name in this run."""
    weight: Weight = 1.0
    reward: RewardSettings = RewardSettings()

    @property
    def options(self) -> dict[str, JsonValue]:
        """What decides how a question is made: members of a run must agree on it."""
        answering = set(QuestionSettings.model_fields)
        return self.model_dump(mode="json", exclude={"kind", "name", "weight", "reward", *answering})


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
