"""Handwritten digits to add, as pictures."""

from __future__ import annotations

import numpy

from swarm.distribution import how_to_install
from swarm.environments.digests import draw
from swarm.environments.generated.chance import Chance
from swarm.environments.generated.config import DigitsTask
from swarm.environments.generated.drawing import Pixels, as_image
from swarm.environments.generated.source import Made
from swarm.errors import TaskError
from swarm.types import HELD_OUT_STREAMS

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise TaskError(f"a task of the kind digits needs scikit-learn ({error}): {how_to_install('media')}") from error

HELD_OUT_EVERY = 10
LEVELS = 16
"""The brightest level of grey."""

_LOADED = load_digits()
_PICTURES = _LOADED.images.astype(numpy.int64)
"""[1797, 8, 8] levels of grey."""
_VALUES: tuple[int, ...] = tuple(map(int, _LOADED.target))
_HELD_OUT, _TRAINED = (
    [number for number in range(len(_VALUES)) if (draw(HELD_OUT_EVERY, "digits", number) == 0) == held_out]
    for held_out in (True, False)
)


def make_digits(task: DigitsTask, chance: Chance) -> Made:
    """Some digits, of those that streams of the question's kind have, and their sum."""
    *_, seed, _ = chance.key
    assert isinstance(seed, int)
    known = _HELD_OUT if seed >= HELD_OUT_STREAMS else _TRAINED
    chosen = [chance.one_of(known, "digit", place) for place in range(task.num_digits)]
    drawn = [_drawn(number, task.scale) for number in chosen]
    pictures = drawn if task.layout == "several" else [numpy.concatenate(drawn, axis=1)]
    what = "What is the sum of the digits?" if task.num_digits > 1 else "Which digit is this?"
    return Made(tuple(map(as_image, pictures)), what, str(sum(_VALUES[number] for number in chosen)))


def _drawn(number: int, scale: int) -> Pixels:
    """White on black, each level of grey a block of pixels."""
    levels = (_PICTURES[number] * 255 // LEVELS).astype(numpy.uint8)
    pixels: Pixels = levels.repeat(scale, axis=0).repeat(scale, axis=1)[..., None].repeat(3, axis=2)
    return pixels
