"""`swarm give` and `swarm answer`: ask the endpoint first, give until stopped, show what became of it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from nodes.boot.directory import check_gives
from nodes.boot.loop import launch
from nodes.console import say, warn
from nodes.roles import ROLES
from swarm.config import LoadedConfig
from swarm.kinds import extra
from swarm.policy.config import BEHIND_ENDPOINT
from swarm.sanitize import clean

MAX_SHOWN_CHARS = 80


def give(loaded: LoadedConfig, console: Console, *, live: bool, supervised: bool) -> int:
    """Run a giver, of a model that is loaded here if `policy.model` names one; returns the exit code.

    Raises `SwarmError` for errors before the start, the endpoint's included.
    """
    if loaded.config.policy.model == BEHIND_ENDPOINT:
        role = ROLES["give"]
        _probe(loaded, "give", console)
    else:
        role = extra("give.roles.local").LocalGiverNode
        check_gives(loaded, "give")
    code = launch(role, loaded, console, live=live, report=False, supervised=supervised)
    _show_given(loaded.config.out, console)
    return code


def answer(loaded: LoadedConfig, console: Console) -> int:
    """Let a person answer; returns the exit code. Raises `SwarmError` for errors before the start."""
    if loaded.config.endpoint.url or loaded.config.endpoint.model:
        _probe(loaded, "answer", console)
    else:
        check_gives(loaded, "answer")
    code = launch(ROLES["answer"], loaded, console, live=False, report=False, supervised=False)
    _show_given(loaded.config.out, console)
    return code


def _probe(loaded: LoadedConfig, command: str, console: Console) -> None:
    """Ask the endpoint before anything is written or joined."""
    settings = loaded.config.endpoint
    engine = extra("give.engine").EndpointEngine(settings)
    check_gives(loaded, command)
    say(console, f"asking {settings.model} at {settings.url} for its first word")
    reported = engine.probe()
    if reported != settings.model:
        warn(
            console,
            f"the endpoint calls its model {clean(reported, MAX_SHOWN_CHARS)}, not {settings.model}: groups are shared "
            f"under the name {settings.public_model}; give --model the right one if that is another",
        )


def _show_given(out: Path, console: Console) -> None:
    """What became of a giver's groups, as its peers say."""
    usage_file = extra("give.usage")
    given = usage_file.read_given(out)
    say(console, usage_file.given_in_words(given))
    if not given.peers:
        return
    table = Table("peer", "received", "used", "refused", "spare", "worth", box=None, pad_edge=False)
    for peer_id, usage in sorted(given.peers.items(), key=lambda item: -item[1].used):
        worth = f"{usage.worth.value:.2f}" if usage.worth else "-"
        counts = usage.received, usage.used, usage.refused, usage.spare
        table.add_row(peer_id[-8:], *map(str, counts), worth)
    console.print(table)
