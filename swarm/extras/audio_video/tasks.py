"""Tasks of generated media: clips in which something moves; tones and rhythms from one table of integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import numpy
import numpy.typing
from pydantic import Field, model_validator

from swarm.environments.config import TaskName
from swarm.environments.decoding.pixels import ColourName, Pixels, ShapeName, add_shape, blank
from swarm.environments.digests import Chance
from swarm.environments.sources.generated import GeneratedTask, Made
from swarm.types.media import MAX_MEDIA_BYTES, Audio, Modality, Video

ClipQuestion = Literal["direction", "which", "bounces"]
DIRECTIONS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
)
SHAPES: tuple[ShapeName, ...] = ("circle", "square", "triangle")
COLOURS: tuple[ColourName, ...] = ("red", "green", "blue", "yellow", "white", "purple")
MAX_BOUNCES = 3


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

    def make(self, chance: Chance) -> Made:
        """A clip and a question about it."""
        match chance.one_of(self.questions, "question"):
            case "direction":
                return _direction(self, chance)
            case "which":
                return _which(self, chance)
            case "bounces":
                return _bounces(self, chance)


def _direction(task: ClipTask, chance: Chance) -> Made:
    direction = chance.one_of(tuple(DIRECTIONS), "direction")
    side, (across, down) = task.size // 4, DIRECTIONS[direction]
    shape, colour = chance.one_of(SHAPES, "shape"), chance.one_of(COLOURS, "colour")
    room = task.size - side
    lane = chance.number(0, room, "lane")
    frames = _frames(task)
    for frame, way in zip(frames, _ways(task, room), strict=True):
        x = lane if across == 0 else way if across > 0 else room - way
        y = lane if down == 0 else way if down > 0 else room - way
        add_shape(frame, shape, colour, x, y, side)
    return Made((_video(task, frames),), "Which way does it move: left, right, up or down?", direction)


def _which(task: ClipTask, chance: Chance) -> Made:
    """One of two shapes moves across its half of the picture, the other one stays."""
    mover, other = chance.shuffled(SHAPES, "shapes")[:2]
    colours = chance.shuffled(COLOURS, "colours")
    side, half = task.size // 4, task.size // 2
    above = chance.number(0, 1, "above")
    still_x = chance.number(0, task.size - side, "still")
    rows = [(half - side) // 2 + place * half for place in (0, 1)]
    backwards = chance.number(0, 1, "backwards")
    frames, room = _frames(task), task.size - side
    for frame, way in zip(frames, _ways(task, room), strict=True):
        add_shape(frame, mover, colours[0], room - way if backwards else way, rows[above], side)
        add_shape(frame, other, colours[1], still_x, rows[1 - above], side)
    first, second = chance.shuffled((mover, other), "order")
    return Made((_video(task, frames),), f"Which one moves: {first} or {second}?", mover)


def _bounces(task: ClipTask, chance: Chance) -> Made:
    """A ball goes to and fro between two opposite edges; where it begins and ends it touches none."""
    most = min(MAX_BOUNCES, (task.num_frames - 2) // 2)
    count = chance.number(0, most, "count")
    side, colour = task.size // 4, chance.one_of(COLOURS, "colour")
    upright, room = chance.number(0, 1, "upright"), task.size - task.size // 4
    lane = chance.number(0, room, "lane")
    frames = _frames(task)
    for number, frame in enumerate(frames):
        place = _to_and_fro(number, task.num_frames, count, room)
        x, y = (lane, place) if upright else (place, lane)
        add_shape(frame, "circle", colour, x, y, side)
    return Made((_video(task, frames),), "How many times does the ball bounce?", str(count))


def _to_and_fro(number: int, num_frames: int, count: int, room: int) -> int:
    """Where the ball is: it sets out from the middle, and is there again after the last edge, so `count` edges lie on
    the way."""
    way = room // 2 + number * count * room // (num_frames - 1)
    there = way % (2 * room)
    return there if there <= room else 2 * room - there


def _ways(task: ClipTask, room: int) -> list[int]:
    """How far something has come in each frame, from one edge to the other."""
    return [number * room // (task.num_frames - 1) for number in range(task.num_frames)]


def _frames(task: ClipTask) -> list[Pixels]:
    return [blank(task.size, task.size) for _ in range(task.num_frames)]


def _video(task: ClipTask, frames: list[Pixels]) -> Video:
    return Video(task.size, task.size, task.frames_per_s, b"".join(frame.tobytes() for frame in frames))


TonesQuestion = Literal["highest", "beeps", "rhythm"]
Samples = numpy.typing.NDArray[numpy.int64]

HALF = 128
"""Entries for half a wave."""
LOUDNESS = 12_000
PHASE_BITS = 32
FADE = 64
"""Samples over which a tone grows and ends, so that it does not click."""
PITCHES = (262, 330, 392, 523, 659, 784, 1_047, 1_319)
"""In Hz: an arpeggio of C major."""
PLACES = ("first", "second", "third")
LONG = 3
"""Beats."""


def _half_wave() -> Samples:
    """Bhaskara's approximation of the sine, a quotient of integers that is at most 0.2% off."""
    steps = numpy.arange(HALF, dtype=numpy.int64)
    product = steps * (HALF - steps)
    wave: Samples = LOUDNESS * 16 * product // (5 * HALF * HALF - 4 * product)
    return wave


_WAVE = numpy.concatenate([_half_wave(), -_half_wave()])


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

    def make(self, chance: Chance) -> Made:
        """A sound and a question about it."""
        match chance.one_of(self.questions, "question"):
            case "highest":
                return _highest(self, chance)
            case "beeps":
                return _beeps(self, chance)
            case "rhythm":
                return _rhythm(self, chance)


def _highest(task: TonesTask, chance: Chance) -> Made:
    pitches = chance.shuffled(PITCHES, "pitches")[: len(PLACES)]
    heard = _sound(task, [(pitch, LONG) for pitch in pitches])
    return Made((heard,), "Which tone is the highest: first, second or third?", PLACES[pitches.index(max(pitches))])


def _beeps(task: TonesTask, chance: Chance) -> Made:
    count = chance.number(1, task.max_beeps, "count")
    pitch = chance.one_of(PITCHES, "pitch")
    return Made((_sound(task, [(pitch, 1)] * count),), "How many beeps?", str(count))


def _rhythm(task: TonesTask, chance: Chance) -> Made:
    names = [chance.one_of(("short", "long"), "length", place) for place in range(len(PLACES))]
    pitch = chance.one_of(PITCHES, "pitch")
    heard = _sound(task, [(pitch, LONG if name == "long" else 1) for name in names])
    return Made((heard,), "Which rhythm? Answer like short-long-short.", "-".join(names))


def _sound(task: TonesTask, notes: Iterable[tuple[int, int]]) -> Audio:
    """Notes of a pitch and a number of beats, with a pause of one beat before, between and after them."""
    pause = numpy.zeros(task.beat, numpy.int64)
    pieces = [pause]
    for pitch, beats in notes:
        pieces += [_tone(pitch, beats * task.beat, task.rate), pause]
    return Audio(task.rate, numpy.concatenate(pieces).astype("<i2").tobytes())


def _tone(pitch: int, num_samples: int, rate: int) -> Samples:
    """[num_samples] of a wave whose phase is a whole number of 2^-32 periods."""
    times = numpy.arange(num_samples, dtype=numpy.int64)
    phases = times * (pitch * 2**PHASE_BITS // rate) % 2**PHASE_BITS
    fade = numpy.minimum(numpy.minimum(times, num_samples - 1 - times), FADE)
    tone: Samples = _WAVE[phases * len(_WAVE) // 2**PHASE_BITS] * fade // FADE
    return tone
