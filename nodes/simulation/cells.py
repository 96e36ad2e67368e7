"""Runs cells side by side, a process each, and shows how far they are."""

from __future__ import annotations

import re
import shutil
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nodes.console import policy_progress
from nodes.simulation.children import SAVE_TIMEOUT_S, SAVING, STOP_TIMEOUT_S, Child, find_source_in_child, stop_all
from nodes.simulation.configs import Member, node_seed
from nodes.stop import Stop
from swarm.config import NodeConfig
from swarm.errors import ConfigError
from swarm.files import replace_file
from swarm.machine import num_cores
from swarm.settings import leaves
from swarm.telemetry.benefit.comparison import SwarmOutcome
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE

Values = dict[str, object]
"""Fields of a configuration, nested, as JSON."""
S = TypeVar("S", bound=Struct)

CELL_FILE = "cell.json"
RESULT_FILE = "result.json"
STOPPED_FILE = "stopped.json"
MAX_SHOWN = 3

POLL_S = 0.2
SPARE_CORES = 0.2
"""Left to everything but nodes with a fixed share: the processes around them."""
PLAIN_EVERY_S = 300.0
CELL_MODULE = "nodes.simulation.cell"


class Seat(Struct, frozen=True):
    """A node of a cell."""

    name: str
    seed: int
    """Seed of its questions and samples."""
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
        """Cores of all nodes together; 0 without a limit."""
        return len(self.seats) * (self.cores or 0.0)

    @property
    def can_be_stopped(self) -> bool:
        """Whether it can be resumed after a stop: it must have no guests, who keep no checkpoints, and no network."""
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
    """The nodes' clock in Unix seconds; None: now."""
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
        """Whether the cell was stopped where it can be resumed. Raises `ConfigError` for a damaged file."""
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
    """Values by dotted path; the cell's configuration under the names of its fields."""
    seats = {f"node {seat.name}": msgspec.to_builtins(seat) for seat in cell.seats}
    how = {"guests": list(cell.guests), "transport": cell.transport, "cores": cell.cores}
    return dict(leaves({**cell.config, **seats, **how}))


def _differences(found: Mapping[str, object], wanted: Mapping[str, object]) -> Iterable[str]:
    for path in found.keys() | wanted.keys():
        before, now = found.get(path), wanted.get(path)
        if before != now:
            yield f"{path}: {_short(before)} there, {_short(now)} now"


def _short(value: object) -> str:
    text = "nothing" if value is None else msgspec.json.encode(value).decode().strip('"')
    return text if len(text) <= 60 else f"{text[:57]}..."


def run_cells(
    cells: Sequence[Cell], store: CellStore, jobs: int, stop: Stop, console: Console, module: str = CELL_MODULE
) -> int:
    """Run the cells without a result, until `stop`. Returns how many failed; the others run to their end.

    At most `jobs` run at a time, and no more than there are cores for, where nodes have fixed shares. `module`
    is the cells' process. Raises `ConfigError` for results of another configuration.
    """
    if len({cell.name for cell in cells}) < len(cells):
        raise ConfigError("two rows have the same name: give each once")
    store.check(cells)
    waiting = deque(cell for cell in cells if store.result(cell) is None)
    for model in _policies(waiting):
        with policy_progress(console, model) as progress:
            find_source_in_child(model, progress)
    running: list[_Running] = []
    failed = 0
    with _Display(console, len(cells), len(cells) - len(waiting)) as display:
        try:
            while (waiting or running) and not stop():
                while waiting and len(running) < jobs and _has_cores(waiting[0], running):
                    running.append(_Running(waiting.popleft(), store, module))
                    display.began(running[-1])
                for run in [run for run in running if not run.child.running]:
                    running.remove(run)
                    failed += not run.succeeded
                    display.ended(run)
                display.refresh(running)
                time.sleep(POLL_S)
        finally:
            saving = any(run.cell.can_be_stopped for run in running)
            if saving:
                display.say(SAVING)
            stop_all([run.child for run in running], SAVE_TIMEOUT_S if saving else STOP_TIMEOUT_S)
    return failed


def _has_cores(cell: Cell, running: Sequence[_Running]) -> bool:
    """Whether the cell's nodes get their shares beside those of the running cells; a cell alone always runs."""
    taken = sum(run.cell.cores_taken for run in running)
    return not running or taken + cell.cores_taken <= num_cores() - SPARE_CORES


def _policies(cells: Iterable[Cell]) -> set[str]:
    """Policies of the cells' nodes: those that are made here are made once, before several processes want them."""
    return {member.config.policy.model for cell in cells for member in cell.members(Path())}


class _Running:
    """A cell's process, started in an empty folder, or where the cell was stopped."""

    def __init__(self, cell: Cell, store: CellStore, module: str) -> None:
        folder = store.folder / cell.name
        if not store.goes_on(cell):
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
            folder.mkdir(parents=True)
            write(folder / CELL_FILE, cell)
        self.cell = cell
        self.child = Child(cell.name, [str(folder)], folder, module)
        self._store = store
        self._began = time.monotonic()
        self._history = PeerHistory(folder / cell.seats[0].name / METRICS_FILE)
        self.child.start()

    @property
    def succeeded(self) -> bool:
        return self.child.exit_code == 0 and self._store.result(self.cell) is not None

    @property
    def rounds(self) -> int:
        """Rounds of its first node so far."""
        self._history.tail()
        return max(self._history.rounds, default=0)

    @property
    def num_rounds(self) -> int | None:
        """Rounds of its first node in all."""
        return self._history.start.rounds if self._history.start else None

    def outcome(self) -> str:
        """A line for people."""
        if not self.succeeded:
            return f"{self.cell.name} failed: {self.child.last_words()}"
        return f"{self.cell.name}: done in {time.monotonic() - self._began:.0f} s"


class _Display:
    """A bar of cells and one of rounds for each that runs; in a file, a line for each cell that has ended, and every
    few minutes one for each that runs."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._console = console
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._total = self._bars.add_task("cells", total=total, completed=done)
        self._tasks: dict[str, TaskID] = {}
        self._told = time.monotonic()
        if done:
            console.print(f"{done} of {total} cells were finished before", highlight=False)

    def __enter__(self) -> _Display:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def began(self, run: _Running) -> None:
        self._tasks[run.cell.name] = self._bars.add_task(run.cell.name, total=None)

    def ended(self, run: _Running) -> None:
        self._bars.remove_task(self._tasks.pop(run.cell.name))
        self._bars.advance(self._total)
        self._console.print(run.outcome(), highlight=False, markup=False, soft_wrap=True)

    def refresh(self, running: Sequence[_Running]) -> None:
        if not self._bars.disable:
            for run in running:
                self._bars.update(self._tasks[run.cell.name], completed=run.rounds, total=run.num_rounds)
        elif time.monotonic() - self._told > PLAIN_EVERY_S:
            self._told = time.monotonic()
            for run in running:
                self._console.print(f"{run.cell.name}: {run.rounds} rounds so far", highlight=False, markup=False)
