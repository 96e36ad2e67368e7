"""The demo in one process: one run, and another with a lone node as its control."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from nodes import exits
from nodes.simulation.in_memory import MemoryRun, Turns, take_turns
from nodes.simulation.members import Member
from nodes.stop import StopRequest
from swarm.config import load_config
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE


def simulate_in_memory(
    file: Path, out: Path, num_peers: int, first_seed: int, control: Path | None, supervised: bool
) -> int:
    """Run `num_peers` peers round by round, and one alone if `control` configures it. Returns the exit code."""
    stop = StopRequest(supervised)
    folders = [out / f"peer-{k + 1}" for k in range(num_peers)]
    turns = _turns(folders)
    runs = [MemoryRun(_members(file, folders, first_seed), stop, turns)]
    if control is not None:
        runs.append(MemoryRun(_members(control, [out / control.stem], first_seed), stop, turns))
    take_turns(runs, turns, stop)
    return exits.INTERRUPTED if stop() else exits.DONE


def _turns(folders: Sequence[Path]) -> Turns:
    """From where the nodes in these folders were when they ended; those that are ahead wait for the others."""
    rounds = [max(PeerHistory.read(folder / METRICS_FILE).rounds, default=0) for folder in folders]
    return Turns(min(rounds), int(time.time()) + max(rounds))


def _members(file: Path, folders: Sequence[Path], first_seed: int) -> list[Member]:
    base = load_config(file, None, os.environ).config
    return [
        Member(base.model_copy(update={"name": folder.name, "out": folder, "seed": first_seed + k}))
        for k, folder in enumerate(folders)
    ]
