"""`swarm pause`, `resume`, `stop` and `health`: nodes that run on this machine, from outside.

A pause is a file in a node's directory, which the node reads between its rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import psutil
from msgspec import Struct
from msgspec.structs import asdict
from rich.console import Console

from nodes import exits
from nodes.boot.directory import ADDRESS_FILE, running_nodes
from nodes.commands.watching import check_named, find_nodes
from nodes.console import say
from swarm.errors import ConfigError
from swarm.net.addresses.dial import probe
from swarm.sanitize import clean_lines
from swarm.schedule import AskedPause, ask, withdraw
from swarm.telemetry.history import PeerHistory, pause_in_words
from swarm.telemetry.nodes import Found
from swarm.telemetry.records import (
    METRICS_FILE,
    EndEvent,
    Event,
    PauseEvent,
    ResumeEvent,
    RoundEvent,
    StartEvent,
    decode,
)

SECONDS = {"m": 60, "h": 3_600, "d": 86_400}

WAIT_S = 60.0
TAIL_BYTES = 64 * 2**10
STEPS = (StartEvent, RoundEvent, PauseEvent, ResumeEvent, EndEvent)


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
    check_named(runs)
    found = find_nodes(runs)
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


def stop_nodes(runs: Sequence[Path], console: Console) -> None:
    """Ask the nodes in these directories, or below them, to end, and wait; without any, the only one that runs here.

    Raises `ConfigError` when there is none, and for several that are not named.
    """
    check_named(runs)
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


class Health(Struct, frozen=True, kw_only=True):
    """The health of one node."""

    out: Path
    healthy: bool
    detail: str
    """The reason, for people."""
    pid: int | None = None
    """Process id; None when the node was given by its directory."""


def report_health(out: Path | None, within_s: float, as_json: bool, console: Console) -> int:
    """Print the state of the node in `out`, or of every running node; returns 0 when all make progress.

    Raises `ConfigError` when there is no directory `out`.
    """
    if out is not None and not out.is_dir():
        raise ConfigError(f"there is no directory {out}; use the --out of a node")
    found: dict[Path, int | None] = {out: None} if out is not None else {**running_nodes()}
    healths = [check(folder, within_s, time.time(), pid) for folder, pid in found.items()]
    if as_json:
        print(json.dumps([{**asdict(health), "out": str(health.out)} for health in healths]))
    else:
        for health in healths:
            style = "green" if health.healthy else "red"
            text = clean_lines(f"{health.out}: {health.detail}")
            console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        if not healths:
            console.print("no node is running here", style="red")
    return exits.DONE if healths and all(health.healthy for health in healths) else exits.FAILED


def check(out: Path, within_s: float, now: float, pid: int | None = None) -> Health:
    """A peer is healthy while its metrics grow, a bootstrap node while one of its addresses accepts connections.

    `within_s` is the longest silence of a healthy peer, `now` Unix seconds.
    """
    metrics, addresses = out / METRICS_FILE, out / ADDRESS_FILE
    if metrics.exists():
        healthy, detail = _peer(metrics, within_s, now)
    elif addresses.exists():
        healthy, detail = asyncio.run(_bootstrap(addresses.read_text().split()))
    else:
        healthy, detail = False, f"starting, or not a node's directory: neither {METRICS_FILE} nor {ADDRESS_FILE} yet"
    return Health(out=out, healthy=healthy, detail=detail, pid=pid)


def _peer(metrics: Path, within_s: float, now: float) -> tuple[bool, str]:
    silent_s = max(0.0, now - metrics.stat().st_mtime)
    event = _last_step(metrics)
    if isinstance(event, EndEvent):
        return False, f"ended after {event.round} rounds: {event.reason}"
    if isinstance(event, PauseEvent) and (event.until is None or now <= event.until + within_s):
        return True, pause_in_words(event)
    where = f"round {event.round}" if isinstance(event, RoundEvent) else "before the first round, or resuming"
    if silent_s > within_s:
        return False, f"silent for {silent_s:.0f} s, more than {within_s:g} s; {where}"
    return True, f"{where}, {silent_s:.0f} s ago"


def _last_step(metrics: Path) -> Event | None:
    """The last event that says what the node does; notes and results come also while it pauses."""
    with metrics.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().splitlines()
    return next((event for line in reversed(lines) if isinstance(event := decode(line), STEPS)), None)


async def _bootstrap(multiaddrs: list[str]) -> tuple[bool, str]:
    hosts = {address.partition("/p2p/")[0]: address for address in multiaddrs}
    tcp = [host for host in hosts if re.fullmatch(r"/[^/]+/[^/]+/tcp/\d+", host)]
    if not tcp:
        return False, "announced no TCP address"
    problems = await asyncio.gather(*map(probe, tcp))
    if None in problems:
        return True, f"accepts connections at {hosts[tcp[problems.index(None)]]}"
    return False, "; ".join(f"{hosts[host]}: {problem}" for host, problem in zip(tcp, problems, strict=True))
