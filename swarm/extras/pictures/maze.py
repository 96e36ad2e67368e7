"""A maze to walk, seen from above: the observations are pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field, model_validator

from swarm.environments.config import Context, TaskName
from swarm.environments.decoding.pixels import COLOURS, Pixels, as_image, blank
from swarm.environments.digests import Chance
from swarm.environments.episodes.source import EnvironmentTask
from swarm.protocols import Environment
from swarm.types import MAX_TURNS, Observation, StepReward, Terminal, Text
from swarm.types.media import MAX_MEDIA_BYTES, Modality

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
