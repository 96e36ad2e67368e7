"""`swarm runs`: the runs that bootstraps list; and which of them a name on the command line means."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, to_builtins
from rich.console import Console

from nodes.boot.visits import visiting, visitor_settings
from nodes.commands.peers import Column, duration, short, table
from nodes.console import say, warn
from swarm.errors import ConfigError, PeerUnreachable
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.addresses.dial import unreachable
from swarm.net.services.runs import FoundRun, ask_runs
from swarm.sanitize import clean
from swarm.types import RunManifest

TIMEOUT_S = 20.0


class Listed(Struct, frozen=True):
    """A run and where it can be joined."""

    run: FoundRun
    address: str
    at: str
    """The bootstrap that lists it."""


def bootstraps_file() -> Path:
    """The user's list of bootstraps, an entry a line as in `network.bootstrap`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "swarm" / "bootstraps"


def show_runs(addresses: Sequence[str], as_json: bool, console: Console) -> int:
    """Print the runs that these bootstraps list, by default those of the user's file; whether any answered, as an exit
    code. Raises `ConfigError` without any bootstrap, and for a wrong address."""
    entries = list(addresses) or own_bootstraps()
    found, problems = look(entries)
    for where, problem in problems.items():
        warn(console, f"{where}: {clean(problem)}")
    if as_json:
        print(json.dumps([_as_dict(each) for each in found], indent=1))
    elif found:
        console.print(table(_columns(time.time()), found, console.width))
        say(console, "signed by their founders; a * is a claim")
        lists = dict.fromkeys(each.at for each in found)
        for at in lists:
            names = ", ".join(dict.fromkeys(clean(each.run.name) for each in found if each.at == at))
            say(console, f"to join one{f' of {names}' if len(lists) > 1 else ''}: swarm join NAME@{at}")
    elif not problems:
        say(console, "no run is open there")
    return 0 if found or not problems else 1


def resolve(target: str) -> list[tuple[str, str]]:
    """The fields that join the run `NAME@ADDRESS`. Raises `ConfigError` if there is no such run, or several."""
    name, _, address = target.partition("@")
    found, problems = look([address])
    for problem in problems.values():
        raise PeerUnreachable(f"{address}: {problem}")
    matching = [each for each in found if name == each.run.manifest.run_id]
    matching = matching or [each for each in found if name == each.run.name]
    if len(matching) > 1:
        choices = "; ".join(f"{each.run.manifest.run_id}@... of {each.run.manifest.founder}" for each in matching)
        raise ConfigError(f"several runs are called {name!r} there; name the founder's by its run id: {choices}")
    if not matching:
        names = ", ".join(dict.fromkeys(each.run.name for each in found)) or "none"
        raise ConfigError(f"no run {clean(name)!r} is open at {address}; open are: {clean(names)}")
    run = matching[0]
    return [("network.bootstrap", run.address), ("network.run_id", run.run.manifest.run_id)]


def look(entries: Sequence[str]) -> tuple[list[Listed], dict[str, str]]:
    """The runs that bootstraps list, each once, and the problems of those that did not answer. Raises `ConfigError`."""
    bootstraps = Bootstraps(entries)
    problems = dict(bootstraps.look_up())
    multiaddrs = bootstraps.multiaddrs()
    closed = unreachable(multiaddrs)
    problems |= closed
    alive = tuple(each for each in multiaddrs if each not in closed)
    found: dict[str, Listed] = {}
    if alive:
        with visiting(visitor_settings(alive)) as transport:
            for peer_id, addresses in Bootstraps(alive).by_peer().items():
                at = f"{addresses[0]}/p2p/{peer_id}"
                try:
                    for run in ask_runs(transport, peer_id, TIMEOUT_S):
                        # A bootstrap's own run comes first, and is joined there.
                        found.setdefault(run.manifest.run_id, Listed(run, run.address or at, at))
                except PeerUnreachable as error:
                    problems[at] = str(error)
    return list(found.values()), problems


def own_bootstraps() -> list[str]:
    """The entry that means the user's list. Raises `ConfigError` without one."""
    file = bootstraps_file()
    if not file.is_file():
        raise ConfigError(
            f"name a bootstrap's address, or put addresses into {file}, one a line, for commands without one"
        )
    return [f"file:{file}"]


def _columns(now: float) -> list[Column[Listed]]:
    return [
        Column("run", lambda each: each.run.name, squeeze_to=20),
        Column("founder", lambda each: short(each.run.manifest.founder)),
        Column(
            "tasks", lambda each: ", ".join(task.name for task in each.run.manifest.tasks) or "none", 2, squeeze_to=14
        ),
        Column("models*", lambda each: ", ".join(each.run.models), 3, squeeze_to=12),
        Column("members*", lambda each: str(each.run.members), 1, number=True),
        Column("founded", lambda each: f"{duration(now - each.run.manifest.created_at)} ago", 4, number=True),
        Column("terms", lambda each: terms(each.run.manifest), 5, squeeze_to=16),
        Column("run id", lambda each: each.run.manifest.run_id, 6),
        Column("address", lambda each: each.address, 7, squeeze_to=24),
    ]


def terms(manifest: RunManifest) -> str:
    """What a member takes on: a learner's model, or own and others' groups of an update."""
    if manifest.terms is not None:
        return f"works for {manifest.terms.model}"
    return f"{manifest.local}+{manifest.external} groups of {manifest.group_size}"


def _as_dict(each: Listed) -> dict[str, object]:
    manifest = each.run.manifest
    return {
        "run_id": manifest.run_id,
        "founder": manifest.founder,
        "created_at": manifest.created_at,
        "tasks": [task.name for task in manifest.tasks],
        "terms": to_builtins(manifest.terms),
        "group_size": manifest.group_size,
        "local": manifest.local,
        "external": manifest.external,
        "address": each.address,
        "listed_at": each.at,
        "claimed": {"members": each.run.members, "models": each.run.models},
    }
