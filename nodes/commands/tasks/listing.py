"""`swarm tasks`: lists the tasks that a node can learn."""

from __future__ import annotations

import json

from msgspec import structs
from rich.console import Console
from rich.text import Text

from swarm.environments.sources.reasoning_gym import CatalogueEntry, catalogue

MAX_EXAMPLE_CHARS = 240


def list_tasks(pattern: str, as_json: bool, console: Console) -> None:
    """Print the tasks whose name contains `pattern`, each with an example and its options."""
    with console.status("making an example of every task"):
        entries = [entry for entry in catalogue() if pattern in entry.name]
    if as_json:
        print(json.dumps([structs.asdict(entry) for entry in entries], indent=1))
        return
    for entry in entries:
        console.print(_describe(entry))
    console.print(
        f"{len(entries)} ReasoningGYM tasks. A Hugging Face data set, local files and a task of your own are tasks "
        "too: items of `tasks` with `kind: dataset` and `kind: python`; see docs/tasks.md."
    )


def _describe(entry: CatalogueEntry) -> Text:
    text = Text()
    text.append(entry.name, style="bold").append(f"  {entry.category}\n", style="dim")
    if entry.error:
        text.append(f"  no example: {entry.error}\n", style="yellow")
    else:
        text.append(f"  {_shortened(entry.question)}\n").append(
            f"  answer: {_shortened(entry.answer or '-')}\n", "green"
        )
    options = ", ".join(f"{name}={value}" for name, value in entry.options.items())
    return text.append(f"  options: {options}\n", style="dim")


def _shortened(text: str) -> str:
    line = " / ".join(text.splitlines())
    return line if len(line) <= MAX_EXAMPLE_CHARS else f"{line[:MAX_EXAMPLE_CHARS]}..."
