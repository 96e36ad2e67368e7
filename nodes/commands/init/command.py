"""`swarm init`: the steps, from the questions to the file and its costs.

answers.py: what the user wants ──▶ fit.py: what fits ──▶ written.py: the file ──▶ costs.py: what it will take
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodes.commands.init.answers import Given, ask
from nodes.commands.init.written import fields_of, in_yaml
from swarm.config import NodeConfig, load_config
from swarm.errors import ConfigError
from swarm.policy.config import MADE_HERE


def init(file: Path, given: Given, console: Console) -> None:
    """Write a peer's configuration to `file`. Raises `ConfigError`, also when nothing would fit."""
    if file.exists():
        raise ConfigError(f"{file} exists already; name another file, or remove it")
    answers = ask(given, console)
    config = load_config(command_line=answers.pairs).config
    console.print(_looking_at(config), highlight=False, soft_wrap=True)
    from nodes.commands.init.costs import bandwidth, power  # these import torch
    from nodes.commands.init.fit import fitting, machine_in_words, memory_in_words
    from swarm.policy.loading import find_device
    from swarm.preflight.check import with_settings

    found, changes, unknown = fitting(config)
    text = in_yaml(fields_of(answers, changes), machine_in_words(find_device("auto")), time.strftime("%Y-%m-%d"), file)
    try:
        file.write_text(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}; name another file") from error
    chosen = with_settings(config, changes)
    console.print(Text(f"wrote {file}; start it with: ").append(f"swarm join {file}", "bold"), soft_wrap=True)
    costs = Table.grid(padding=(0, 2))
    costs.add_row("memory", Text(unknown or memory_in_words(found, changes)))
    costs.add_row("bandwidth", Text(bandwidth(chosen)))
    costs.add_row("power", Text(power(find_device(chosen.policy.device))))
    console.print(Text("What it will cost:"))
    console.print(costs)
    console.print(Text(f"Check machine and network before the start: swarm doctor {file}"), soft_wrap=True)


def _looking_at(config: NodeConfig) -> str:
    model = config.policy.model
    download = model not in MADE_HERE and not Path(model).exists()
    return f"looking at {model} and at this machine's memory{'; its description may come from the hub' * download}"
