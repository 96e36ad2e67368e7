"""Short clips in which something moves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field, model_validator

from swarm.environments.config import TaskName
from swarm.environments.decoding.pixels import ColourName, Pixels, ShapeName, add_shape, blank
from swarm.environments.digests import Chance
from swarm.environments.sources.generated import GeneratedTask, Made
from swarm.types.media import MAX_MEDIA_BYTES, Modality, Video

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
