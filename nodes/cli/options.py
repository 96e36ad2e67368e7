"""Options that several subcommands have, and what they make of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nodes.cli.arguments import MULTIADDR_STARTS, Fields, no_target
from swarm.errors import ConfigError

if TYPE_CHECKING:
    from swarm.config import LoadedConfig

DEFAULT_HOME = Path("runs/peer")

ConfigArgument = Annotated[Path | None, typer.Argument(help="YAML configuration; default: the built-in one.")]
Options = dict[str, object]
"""By the path of the field that an option stands for: its value, None where it was not given."""

RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(help="Directories of nodes, or of a demo; default: every node running on this machine."),
]
SupervisedOption = Annotated[bool, typer.Option("--supervised", hidden=True, help="Stop when standard input ends.")]
EngineOption = Annotated[str | None, typer.Option(help="Generation engine: auto, transformers or vllm.")]
TargetArgument = Annotated[
    str | None, typer.Argument(help="YAML configuration, or the multiaddr of any member of a run.")
]
BootstrapOption = Annotated[list[str] | None, typer.Option(help="Multiaddr of a member of the run; repeatable.")]
ModelOption = Annotated[str | None, typer.Option(help="Hub id, local directory, or tiny.")]
LiveOption = Annotated[bool, typer.Option(help="Draw a live view when there is a terminal.")]
OutOption = Annotated[Path | None, typer.Option(help="Directory for identity, checkpoints, metrics and reports.")]


def check_config(file: Path | None, pairs: Sequence[tuple[str, str]]) -> LoadedConfig:
    """Validate before any slow import, download or start."""
    from swarm.config import load_config

    return load_config(file, None, os.environ, pairs)


def check_node(file: Path | None, pairs: Sequence[tuple[str, str]]) -> LoadedConfig:
    """The same for a node, with what else can be refused at once."""
    from nodes.boot.directory import refuse_at_once

    loaded = check_config(file, pairs)
    refuse_at_once(loaded)
    return loaded


def find_target(target: str | None, bootstraps: Sequence[str] | None) -> tuple[Path | None, Fields]:
    """The configuration file and bootstraps in a command's arguments.

    Raises `ConfigError` for a wrong address, and for a target that is neither.
    """
    from swarm.net.addresses.bootstrap import Bootstraps  # light: a wrong address is refused before anything is read

    is_address = target is not None and target.startswith(MULTIADDR_STARTS)
    if target is not None and not is_address and not Path(target).is_file():
        raise ConfigError(no_target(target))
    addresses = [*(bootstraps or ()), *([target] if target is not None and is_address else [])]
    Bootstraps(addresses)
    return None if target is None or is_address else Path(target), [("network.bootstrap", each) for each in addresses]


def given_fields(values: Options) -> Fields:
    """Fields for those options that were given."""
    return [(path, str(value)) for path, value in values.items() if value is not None]


def extra_fields(context: typer.Context) -> Fields:
    """Fields given as options such as `--mix.local 3`."""
    fields: Fields = context.find_root().obj
    return fields
