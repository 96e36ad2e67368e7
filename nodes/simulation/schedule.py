"""Runs cells side by side, a process each, and shows how far they are."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nodes.console import policy_progress
from nodes.simulation.cells import CELL_FILE, Cell, CellStore, write
from nodes.simulation.children import SAVE_TIMEOUT_S, SAVING, STOP_TIMEOUT_S, Child, stop_all
from nodes.simulation.policies import find_source_in_child
from nodes.stop import Stop
from swarm.errors import ConfigError
from swarm.machine import num_cores
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE

POLL_S = 0.2
SPARE_CORES = 0.2
"""Left to everything but nodes with a share of their own: the processes around them."""
PLAIN_EVERY_S = 300.0
CELL_MODULE = "nodes.simulation.cell"


def run_cells(
    cells: Sequence[Cell], store: CellStore, jobs: int, stop: Stop, console: Console, module: str = CELL_MODULE
) -> int:
    """Run the cells without a result, until `stop`. Returns how many failed; the rest goes on.

    At most `jobs` run at a time, and no more than there are cores for, where nodes have shares of their own. `module`
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
        """Of its first node so far."""
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
