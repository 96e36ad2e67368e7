"""Settings of tasks whose pictures, sounds and clips are made from a seed."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from swarm.environments.answering import QuestionSettings, RewardSettings
from swarm.environments.fields import TaskName, Weight
from swarm.types.media import MAX_MEDIA_BYTES, Modality

ShapeName = Literal["circle", "square", "triangle"]
ColourName = Literal["red", "green", "blue", "yellow", "white", "purple"]
ShapesQuestion = Literal["count", "shape", "colour", "both", "compare"]
TonesQuestion = Literal["highest", "beeps", "rhythm"]
ClipQuestion = Literal["direction", "which", "bounces"]
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


class DigitsTask(GeneratedTask):
    """Handwritten digits to add: 8 x 8 pixels each in 17 levels of grey, from scikit-learn, which the extra `media`
    installs. Every tenth digit is only in questions for evaluation."""

    shows = frozenset[Modality]({"image"})

    kind: Literal["digits"]
    name: TaskName = "digits"
    """Name in this run."""
    num_digits: int = Field(2, ge=1, le=16)
    """Digits of a question."""
    scale: int = Field(2, ge=1, le=32)
    """Pixels of the picture for each of a digit's, across and down."""
    layout: Literal["one", "several"] = "one"
    """`one` picture with the digits side by side, or `several` with one each."""


class TonesTask(GeneratedTask):
    """Tones and rhythms to name."""

    shows = frozenset[Modality]({"audio"})

    kind: Literal["tones"]
    name: TaskName = "tones"
    """Name in this run."""
    questions: tuple[TonesQuestion, ...] = Field(("highest", "beeps", "rhythm"), min_length=1)
    """One of them is asked: which of three tones is the `highest`, how many `beeps` there are, or which `rhythm` it is,
    as a word such as `long-short-long`."""
    rate: int = Field(8_000, ge=4_000, le=48_000)
    """Samples a second."""
    beat_s: float = Field(0.1, ge=0.02, le=1.0)
    """Length of a short tone and of a pause; a long one has three times this length."""
    max_beeps: int = Field(5, ge=1, le=16)
    """Most beeps that are to be counted."""

    @property
    def beat(self) -> int:
        """Samples of a beat."""
        return int(self.rate * self.beat_s)


class ClipTask(GeneratedTask):
    """Short clips in which something moves."""

    shows = frozenset[Modality]({"video"})

    kind: Literal["clip"]
    name: TaskName = "clip"
    """Name in this run."""
    questions: tuple[ClipQuestion, ...] = Field(("direction", "which", "bounces"), min_length=1)
    """One of them is asked: in which `direction` a shape moves, `which` of two shapes does, or how many `bounces` off
    the edges a ball makes."""
    size: int = Field(32, ge=16, le=256)
    """Pixels of a side."""
    num_frames: int = Field(8, ge=4, le=64)
    frames_per_s: float = Field(4.0, gt=0, le=30)

    @model_validator(mode="after")
    def _a_clip_fits(self) -> ClipTask:
        if (num_bytes := self.num_frames * self.size**2 * 3) > MAX_MEDIA_BYTES:
            raise ValueError(f"{self.num_frames} frames of {self.size} x {self.size} have {num_bytes} bytes, too many")
        return self
