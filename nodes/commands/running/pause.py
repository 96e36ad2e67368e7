"""`swarm pause` and `swarm resume`: a file in a node's directory, at which the node looks between its rounds."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console

from nodes.commands.watching import finding
from nodes.console import say
from nodes.neighbours import running_nodes
from swarm.errors import ConfigError
from swarm.schedule.pause_file import AskedPause, ask, withdraw
from swarm.telemetry.history import PeerHistory, pause_in_words
from swarm.telemetry.nodes import Found
from swarm.telemetry.records import METRICS_FILE

SECONDS = {"m": 60, "h": 3_600, "d": 86_400}


def pause_nodes(runs: Sequence[Path], lasting: str | None, until: str | None, console: Console) -> None:
    """Ask nodes to pause. Raises `ConfigError`."""
    end = _end(lasting, until, time.time())
    running = {folder.resolve() for folder in running_nodes()}
    for found in _nodes(runs):
        ask(found.folder, AskedPause(end))
        when = "until `swarm resume`" if end is None else f"until {time.strftime('%a %H:%M', time.localtime(end))}"
        runs_now = found.folder.resolve() in running
        _say(console, found, f"pauses when its round is finished, {when}" if runs_now else f"will start paused, {when}")


def resume_nodes(runs: Sequence[Path], console: Console) -> None:
    """Withdraw what `swarm pause` asked; say what else keeps a node from working. Raises `ConfigError`."""
    running = {folder.resolve() for folder in running_nodes()}
    for found in _nodes(runs):
        was_asked = withdraw(found.folder)
        history = PeerHistory.read(found.folder / METRICS_FILE, max_rounds=1)
        pause = history.pause
        if found.folder.resolve() not in running:
            waited = ", and will not be paused when it starts" if was_asked else ""
            _say(
                console,
                found,
                f"is not running{waited}; the command that started it, with --out {found.folder}, goes on after round "
                f"{history.latest.round if history.latest else 0}",
            )
        elif was_asked:
            _say(console, found, "goes on, if its schedule allows it")
        elif pause is not None:
            _say(console, found, f"{pause_in_words(pause)}; the fields schedule.* decide this")
        else:
            _say(console, found, "was not paused")


def _nodes(runs: Sequence[Path]) -> list[Found]:
    finding.check(runs)
    found = finding.find(runs)
    if not found:
        raise ConfigError("no node that trains is there: name the directory of one, such as runs/peer")
    return found


def _end(lasting: str | None, until: str | None, now: float) -> float | None:
    """In Unix seconds. Raises `ConfigError`."""
    if lasting is not None and until is not None:
        raise ConfigError("give --for or --until, not both")
    if lasting is not None:
        parts = re.fullmatch(r"(\d{1,5})([mhd])", lasting)
        if parts is None or not int(parts[1]):
            raise ConfigError(f"--for must be a time such as 90m, 8h or 2d, got {lasting!r}")
        return now + int(parts[1]) * SECONDS[parts[2]]
    if until is None:
        return None
    try:
        clock = datetime.strptime(until, "%H:%M")
    except ValueError as error:
        raise ConfigError(f"--until must be a time of the day such as 18:00, got {until!r}") from error
    local = datetime.fromtimestamp(now)
    end = local.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return (end if end > local else end + timedelta(days=1)).timestamp()


def _say(console: Console, found: Found, text: str) -> None:
    say(console, f"{found.folder}: {text}")
