"""Handwritten digits to add, as pictures."""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import numpy
import numpy.typing
from pydantic import Field

from swarm.distribution import how_to_install
from swarm.environments.config import Context, TaskName
from swarm.environments.decoding.pixels import Pixels, as_image
from swarm.environments.digests import Chance, draw
from swarm.environments.sources.generated import GeneratedTask, Made
from swarm.errors import TaskError
from swarm.protocols import TaskSource
from swarm.types import HELD_OUT_STREAMS
from swarm.types.media import Modality

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
