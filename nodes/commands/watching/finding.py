"""Finds the nodes that a command was given: directories of nodes, directories that hold some, or all that run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from nodes.commands.running.demo import CONTROL, CONTROL_FILE
from nodes.neighbours import running_nodes
from swarm.errors import ConfigError
from swarm.telemetry.nodes import Found
from swarm.telemetry.records import METRICS_FILE


def find(runs: Sequence[Path]) -> list[Found]:
    """The nodes in `runs`, in the order of their names; without any, those that run on this machine.

    A control comes last.
    """
    folders = [folder for run in runs or running_nodes() for folder in _nodes_in(run)]
    found = [Found(folder, folder.name, _is_control(folder)) for folder in dict.fromkeys(folders)]
    return sorted(found, key=lambda each: (each.control, str(each.folder.parent), _by_number(each.name)))


def check(runs: Sequence[Path]) -> None:
    """Raises `ConfigError` for a directory that is not there, or when there is nothing to show."""
    for run in runs:
        if not run.is_dir():
            raise ConfigError(f"there is no directory {run}; name a node's --out, or that of a demo")
    if not runs and not running_nodes():
        raise ConfigError("no node is running here; name the directory of one, such as runs/peer")


def _nodes_in(run: Path) -> list[Path]:
    """Itself, or the nodes one level below, which may be starting."""
    if (run / METRICS_FILE).exists():
        return [run]
    return [path.parent for path in run.glob(f"*/{METRICS_FILE}")]


def _is_control(folder: Path) -> bool:
    return folder.name == CONTROL and (folder.parent / CONTROL_FILE).exists()


def _by_number(name: str) -> list[tuple[int, str]]:
    """`peer-10` after `peer-9`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]
