"""The cells of a sweep or a benchmark: what each simulates, and its result in a folder of its own.

FOLDER/4-4-seed0/cell.json      the swarm: complete configuration, nodes, seeds
                 NODE/...       what each node writes, checkpoints and samples removed at the end
                 stopped.json   where a cell that was stopped goes on; one that was killed starts again
                 result.json    written atomically at the end
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from nodes.simulation.members import Member
from nodes.simulation.seeds import node_seed
from swarm.config import NodeConfig
from swarm.errors import ConfigError
from swarm.files import replace_file
from swarm.telemetry.benefit.comparison import SwarmOutcome

Values = dict[str, object]
"""Fields of a configuration, nested, as JSON."""
S = TypeVar("S", bound=Struct)

CELL_FILE = "cell.json"
RESULT_FILE = "result.json"
STOPPED_FILE = "stopped.json"
MAX_SHOWN = 3


class Seat(Struct, frozen=True):
    """A node of a cell."""

    name: str
    seed: int
    """Of its questions and samples."""
    values: Values = {}
    """Where its configuration differs from the cell's."""
    joins_at: int = 0
    """Rounds of the others before it joins."""


class Cell(Struct, frozen=True):
    """One swarm with one seed."""

    row: str
    """What is compared, such as a mix; together with the seed, the name of the cell."""
    seed: int
    config: Values
    """The complete configuration of its nodes, whatever a later version has as a default."""
    seats: tuple[Seat, ...]
    guests: tuple[str, ...] = ()
    """Who else is in the run, such as attackers: names that the cell's process knows."""
    transport: Literal["memory", "hivemind"] = "memory"
    cores: float | None = None
    """Processor seconds a second that each node gets, as a process; None: no limit."""

    @property
    def cores_taken(self) -> float:
        """By all nodes together; 0 without a limit."""
        return len(self.seats) * (self.cores or 0.0)

    @property
    def can_be_stopped(self) -> bool:
        """Whether it can go on after a stop: it must have no guests, who keep no checkpoints, and no network."""
        return self.transport == "memory" and not self.guests

    @property
    def name(self) -> str:
        """Also the name of its folder."""
        return f"{re.sub('[^A-Za-z0-9.]+', '-', self.row)}-seed{self.seed}"

    def members(self, folder: Path) -> list[Member]:
        """Its nodes, each with a directory in `folder`. Raises `pydantic.ValidationError`."""
        return [self._member(seat, folder) for seat in self.seats]

    def _member(self, seat: Seat, folder: Path) -> Member:
        own: Values = {"name": seat.name, "out": str(folder / seat.name), "seed": seat.seed}
        return Member(NodeConfig.model_validate(_overlaid(self.config, {**seat.values, **own})), seat.joins_at)


def complete(config: NodeConfig) -> Values:
    """A configuration as a cell's: everything but what each node has for itself."""
    return config.model_dump(mode="json", exclude={"name", "out", "seed"})


def alike(num_peers: int, seed: int) -> tuple[Seat, ...]:
    """Seats of peers that differ in nothing but their questions, which are the same for every row."""
    return tuple(Seat(f"peer-{k + 1}", node_seed(seed, k)) for k in range(num_peers))


class Stopped(Struct, frozen=True):
    """Where a cell was stopped, with checkpoints of its nodes; by default, where it begins."""

    times: int = 0
    """How often so far."""
    turns: int = 0
    clock: float | None = None
    """Of the nodes, Unix seconds; None: now."""
    cpu_s: float = 0.0
    """Spent so far."""


class CellStore:
    """Results of finished cells."""

    def __init__(self, folder: Path) -> None:
        """In this folder, which need not exist yet."""
        self.folder = folder

    def check(self, cells: Iterable[Cell]) -> None:
        """Raises `ConfigError` if a finished cell had another configuration, and says where they differ."""
        for cell in cells:
            if self.result(cell) is None:
                continue
            found = read(self.folder / cell.name / CELL_FILE, Cell)
            differences = sorted(_differences(_leaves(found), _leaves(cell)))
            if differences:
                shown = "; ".join(differences[:MAX_SHOWN])
                more = f"; and {len(differences) - MAX_SHOWN} more" if len(differences) > MAX_SHOWN else ""
                raise ConfigError(
                    f"{self.folder} has a result of {cell.row}, seed {cell.seed}, with another configuration: "
                    f"{shown}{more}; choose another folder, or remove it"
                )

    def result(self, cell: Cell) -> SwarmOutcome | None:
        """The cell's result; None if it has not finished."""
        path = self.folder / cell.name / RESULT_FILE
        return read(path, SwarmOutcome) if path.exists() else None

    def goes_on(self, cell: Cell) -> bool:
        """Whether the cell was stopped where it can go on. Raises `ConfigError` for a damaged file."""
        folder = self.folder / cell.name
        return (folder / STOPPED_FILE).exists() and read(folder / CELL_FILE, Cell) == cell

    def results(self, cells: Iterable[Cell]) -> list[SwarmOutcome]:
        """Those of the finished cells, in order."""
        return [found for cell in cells if (found := self.result(cell)) is not None]


def read(path: Path, kind: type[S]) -> S:
    """A file of this program. Raises `ConfigError` when it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; remove its folder to run that cell again") from error


def write(path: Path, content: Struct) -> None:
    """Replace the file atomically."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(content), indent=1))


def _overlaid(values: Values, over: Mapping[str, object]) -> Values:
    """`values`, where mappings merge and everything else is replaced."""
    merged = dict(values)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _overlaid(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _leaves(cell: Cell) -> dict[str, object]:
    """By dotted path; the cell's configuration under the names of its fields."""
    seats = {f"node {seat.name}": msgspec.to_builtins(seat) for seat in cell.seats}
    flat: dict[str, object] = {}
    how = {"guests": list(cell.guests), "transport": cell.transport, "cores": cell.cores}
    _flatten({**cell.config, **seats, **how}, "", flat)
    return flat


def _flatten(value: object, path: str, flat: dict[str, object]) -> None:
    if isinstance(value, dict) and value:
        for key, below in value.items():
            _flatten(below, f"{path}.{key}" if path else str(key), flat)
    else:
        flat[path] = value


def _differences(found: Mapping[str, object], wanted: Mapping[str, object]) -> Iterable[str]:
    for path in found.keys() | wanted.keys():
        before, now = found.get(path), wanted.get(path)
        if before != now:
            yield f"{path}: {_short(before)} there, {_short(now)} now"


def _short(value: object) -> str:
    text = "nothing" if value is None else msgspec.json.encode(value).decode().strip('"')
    return text if len(text) <= 60 else f"{text[:57]}..."
