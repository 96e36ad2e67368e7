"""`swarm stop`: ends nodes as Ctrl-C in their terminals does."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import psutil
from rich.console import Console

from nodes.commands.watching.finding import check
from nodes.console import say
from nodes.neighbours import running_nodes
from swarm.errors import ConfigError

WAIT_S = 60.0


def stop_nodes(runs: Sequence[Path], console: Console) -> None:
    """Ask the nodes in these directories, or below them, to end, and wait; without any, the only one that runs here.

    Raises `ConfigError` when there is none, and for several that are not named.
    """
    check(runs)
    wanted = {run.resolve() for run in runs}
    running = {folder: pid for folder, pid in running_nodes().items() if not runs or _is_in(folder, wanted)}
    if not running:
        raise ConfigError(f"no node is running in {', '.join(map(str, runs))}")
    if len(running) > 1 and not runs:
        raise ConfigError(f"several nodes are running here, name those to stop: {', '.join(map(str, running))}")
    processes = []
    for folder, pid in running.items():
        os.kill(pid, signal.SIGTERM)
        processes.append(psutil.Process(pid))
        say(console, f"{folder}: leaves its round, writes a checkpoint and ends")
    _, left = psutil.wait_procs(processes, WAIT_S)
    ids = {process.pid for process in left}
    for folder, pid in running.items():
        say(console, f"{folder}: {f'is still ending (process {pid})' if pid in ids else 'ended'}")


def _is_in(folder: Path, wanted: set[Path]) -> bool:
    return bool(wanted & {folder.resolve(), folder.resolve().parent})
