"""`swarm health`: whether a node makes progress, for health checks of containers and services."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict
from rich.console import Console

from nodes import exits
from nodes.boot.directory import ADDRESS_FILE
from nodes.neighbours import running_nodes
from swarm.errors import ConfigError
from swarm.foreign import clean_lines
from swarm.net.addresses.dial import probe
from swarm.telemetry.history import pause_in_words
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

TAIL_BYTES = 64 * 2**10
STEPS = (StartEvent, RoundEvent, PauseEvent, ResumeEvent, EndEvent)


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
