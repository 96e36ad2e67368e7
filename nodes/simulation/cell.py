"""One cell, run by a separate process: `python -m nodes.simulation.cell FOLDER`."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from nodes import exits
from nodes.boot.directory import CHECKPOINTS
from nodes.simulation.cells import CELL_FILE, RESULT_FILE, STOPPED_FILE, Cell, Stopped, read, write
from nodes.simulation.children import SUPERVISED, run_as_processes
from nodes.simulation.in_memory import Clock, Guest, MemoryRun, Turns, take_turns
from nodes.stop import Stop, StopRequest
from swarm.config import ENVIRONMENT_PREFIX
from swarm.errors import Interrupted, SwarmError
from swarm.net.in_memory import MemoryHub
from swarm.telemetry.benefit.comparison import SwarmOutcome, node_outcome
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE
from swarm.telemetry.samples import OLDER_FILE, SAMPLES_FILE

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000
"""Short, so that a process waits only a few milliseconds for its next share."""
WEIGHT = 10
"""Relative to processes without a limit, which only get what limited ones leave."""
PATIENCE_S = 2.0
PREFIX = "swarm-bench-"

Invite = Callable[[MemoryHub, Clock, int], Guest]
"""Brings a guest into a run; the number is a seed."""


def missing(root: Path = ROOT) -> str | None:
    """Why processes cannot be limited here; None when they can."""
    folder, shared_out = _parent(root), root / "cgroup.subtree_control"
    if folder == root and not (shared_out.exists() and "cpu" in shared_out.read_text().split()):
        return f"Processes cannot be limited: no control group in {root} provides the cpu controller."
    if not os.access(folder, os.W_OK):
        return f"Processes cannot be limited: no group can be created in {folder}."
    return None


def _parent(root: Path) -> Path:
    """Parent of new groups: version 1 has a separate hierarchy for CPU time."""
    return root / "cpu" if (root / "cpu").is_dir() else root


class CpuShares:
    """CPU limits of this process's children, removed when closed."""

    def __init__(self, root: Path = ROOT) -> None:
        """Requires that nothing is `missing` once a process is limited."""
        self._parent = _parent(root)
        self._is_v1 = self._parent != root
        self._groups: list[Path] = []
        _remove_abandoned(self._parent)

    def limit(self, pid: int, cores: float) -> None:
        """Give the process and its future children `cores` CPU seconds per second, and no more. Raises `OSError`."""
        group = self._parent / f"{PREFIX}{os.getpid()}-{pid}"
        group.mkdir()
        self._groups.append(group)
        quota = round(cores * PERIOD_US)
        if self._is_v1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
            (group / "cpu.shares").write_text(str(1024 * WEIGHT))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            (group / "cpu.weight").write_text(str(100 * WEIGHT))
        (group / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the groups, except those of processes that do not end."""
        deadline = time.monotonic() + PATIENCE_S
        while self._groups and time.monotonic() < deadline:
            try:
                self._groups[-1].rmdir()
            except OSError:  # its processes have not ended yet
                time.sleep(0.05)
            else:
                self._groups.pop()


def _remove_abandoned(parent: Path) -> None:
    """Remove the groups of processes that were killed before they could."""
    for group in parent.glob(f"{PREFIX}*"):
        owner = group.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):  # its own processes have not ended yet
                group.rmdir()


def run_cell(folder: Path, stop: Stop, invitations: Mapping[str, Invite]) -> None:
    """Run the cell that `folder` describes, from where it was stopped if it was, and write its result there, or where
    it can go on.

    `invitations`: who the cell's guests are, by name. Raises `SwarmError`.
    """
    cell = read(folder / CELL_FILE, Cell)
    members = cell.members(folder)
    before = _went_before(folder)
    turns = Turns(before.turns, before.clock)
    if cell.transport == "hivemind" and cell.cores is not None:
        with closing(CpuShares()) as shares:
            run_as_processes(members, folder, stop, partial(shares.limit, cores=cell.cores))
    elif cell.transport == "hivemind":
        run_as_processes(members, folder, stop)
    else:
        run = MemoryRun(members, stop, turns)
        for number, name in enumerate(cell.guests):
            run.guests.append(invitations[name](run.hub, turns, cell.seats[-1].seed + 1 + number))
        take_turns([run], turns, stop)
    cpu_s = before.cpu_s + _cpu_s()
    if stop():
        if cell.can_be_stopped:
            write(folder / STOPPED_FILE, Stopped(before.times + 1, turns.taken, turns(), cpu_s))
        return
    nodes = [node_outcome(PeerHistory.read(member.config.out / METRICS_FILE)) for member in members]
    for member in members:
        shutil.rmtree(member.config.out / CHECKPOINTS, ignore_errors=True)
        for name in (SAMPLES_FILE, OLDER_FILE):
            (member.config.out / name).unlink(missing_ok=True)
    write(folder / RESULT_FILE, SwarmOutcome(cell.row, cell.seed, nodes, cpu_s, before.times))


def _went_before(folder: Path) -> Stopped:
    """Where the cell was stopped, if it was; it can be resumed there only once."""
    path = folder / STOPPED_FILE
    if not path.exists():
        return Stopped()
    before = read(path, Stopped)
    path.unlink()
    return before


def _cpu_s() -> float:
    """Processor seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(invitations: Mapping[str, Invite] = {}) -> int:
    """The process of a cell; returns its exit code."""
    folder, *options = sys.argv[1:]
    stop = StopRequest(SUPERVISED in options)
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        del os.environ[name]  # the cell's configuration is complete: nothing may differ from it
    try:
        run_cell(Path(folder), stop, invitations)
    except Interrupted:
        pass  # `stop` says so too
    except SwarmError as error:
        print(f"error: {error}", file=sys.stderr)
        return exits.FAILED
    return exits.INTERRUPTED if stop() else exits.DONE


if __name__ == "__main__":
    sys.exit(main())
