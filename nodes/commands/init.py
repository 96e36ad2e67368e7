"""`swarm init`: asks, looks at the machine, writes a configuration that fits it, and says what it will cost.

Each question is a flag, and asked on a terminal when the flag is not given. `costs.py` says what fits, and what
it takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import yaml
from msgspec import Struct
from pydantic import JsonValue
from rich.console import Console
from rich.table import Table
from rich.text import Text

from swarm.config import CONFIG_VERSION, NodeConfig, load_config
from swarm.errors import ConfigError
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.policy.config import MADE_HERE, TINY, check_model_path
from swarm.sanitize import NAME_CHARS, is_name
from swarm.types import MAX_NAME_CHARS

if TYPE_CHECKING:
    from swarm.preflight.check import Changes

SUGGESTED = TINY
"""It needs no hub and next to no memory."""
MAX_PORT = 65_535
WHOSE_RUN = "Address of a member whose run to join (empty: start your own)"

T = TypeVar("T")

INDENT = "  "
TO_FIT = "Set so that the node fits into this machine's memory."


class Given(Struct, frozen=True):
    """The flags; None for those not given."""

    bootstrap: tuple[str, ...] | None = None
    run_name: str | None = None
    model: str | None = None
    name: str | None = None
    port: int | None = None


class Answers(Struct, frozen=True):
    """What the user wants."""

    bootstrap: tuple[str, ...]
    """Empty: found a run."""
    run_name: str | None
    model: str
    name: str
    """Empty: none."""
    port: int
    """0: any free one."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Configuration fields by dotted path."""
        name = [("name", self.name)] if self.name else []
        run = [("run_name", self.run_name)] if self.run_name and not self.bootstrap else []
        return [("policy.model", self.model), *name, *run]


def ask(given: Given, console: Console) -> Answers:
    """The answers, from flags and on a terminal by asking.

    Raises `ConfigError` for an answer that cannot be used, and without a terminal for one that is missing.
    """
    if given.bootstrap is not None and given.run_name is not None:
        raise ConfigError("--run-name is for a run of your own: leave it out with --bootstrap")
    chosen_run = given.bootstrap is not None or given.run_name is not None
    if not sys.stdin.isatty() and not (given.model and chosen_run):
        raise ConfigError(
            "there is no terminal to ask on: give --model MODEL, and --bootstrap ADDRESS or --run-name NAME"
        )
    asking = _Asking(console, sys.stdin.isatty())
    addresses = given.bootstrap or ()
    return Answers(
        bootstrap=_addresses(" ".join(addresses)) if chosen_run else asking(WHOSE_RUN, None, "", _addresses),
        run_name=None if given.run_name is None else _run_name(given.run_name),
        model=asking(
            "Model: a hub id such as Qwen/Qwen2.5-0.5B-Instruct, a directory, smollm2 or tiny",
            given.model,
            SUGGESTED,
            _model,
        ),
        name=asking("Name that the run's members see (empty: none)", given.name, "", _name),
        port=asking(
            "TCP port for others to connect to (empty: any free one, kept from then on)",
            None if given.port is None else str(given.port),
            "",
            _port,
        ),
    )


def ask_address(console: Console) -> tuple[str, ...]:
    """Addresses of members, asked for on a terminal; empty: found a run. Raises `ConfigError` without an answer."""
    return _Asking(console, True)(WHOSE_RUN, None, "", _addresses)


class _Asking:
    """Asks until an answer can be used."""

    def __init__(self, console: Console, has_terminal: bool) -> None:
        self._console = console
        self._has_terminal = has_terminal

    def __call__(self, question: str, flag: str | None, default: str, read: Callable[[str], T]) -> T:
        if flag is not None or not self._has_terminal:
            return read(default if flag is None else flag)
        while True:
            shown = f"{question} [{default}]: " if default else f"{question}: "
            try:
                return read(self._console.input(Text(shown)).strip() or default)
            except ConfigError as error:
                self._console.print(Text(str(error), style="yellow"), soft_wrap=True)
            except EOFError:
                raise ConfigError("the questions were not answered: nothing was written") from None


def _addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(text.split())
    Bootstraps(addresses)
    return addresses


def _run_name(text: str) -> str:
    return load_config(command_line=[("run_name", text)]).config.run_name


def _model(text: str) -> str:
    check_model_path(load_config(command_line=[("policy.model", text)]).config.policy)
    return text


def _name(text: str) -> str:
    if text and not is_name(text, MAX_NAME_CHARS):
        raise ConfigError(f"--name must be at most {MAX_NAME_CHARS} of {NAME_CHARS}, got {text!r}")
    return text


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() else 0 if not text else -1
    if not 0 <= number <= MAX_PORT:
        raise ConfigError(f"--port must be a number up to {MAX_PORT}, got {text!r}")
    return number


class Field(Struct, frozen=True):
    """A field with its reason."""

    path: str
    value: JsonValue
    comment: str


def fields_of(answers: Answers, changes: Changes) -> list[Field]:
    """The fields in the order of the file; `changes` make the node fit."""
    fields = [Field("version", CONFIG_VERSION, "Version of the format, so that a later program can tell.")]
    if answers.name:
        fields.append(Field("name", answers.name, "Shown to the run's members."))
    if answers.run_name and not answers.bootstrap:
        fields.append(Field("run_name", answers.run_name, "Name of the run that this node founds."))
    fields.append(
        Field("out", "runs/peer", "Identity, checkpoints, metrics and reports: with it a node resumes as itself.")
    )
    model = [Field("policy.model", answers.model, "A hub id, a local directory, smollm2, or tiny, which is embedded.")]
    network = []
    if answers.bootstrap:
        members = "Members to find the run by; any will do, and more than one is safer."
        network.append(Field("network.bootstrap", list(answers.bootstrap), members))
    if answers.port:
        port = "The port that others connect to: let it through the firewall, and forward it in the router."
        network.append(Field("network.listen", [f"/ip4/0.0.0.0/tcp/{answers.port}"], port))
    rest = [Field(path, list(value) if isinstance(value, tuple) else value, TO_FIT) for path, value in changes]
    # Fields of one group stand together.
    return [*fields, *sorted([*network, *model, *rest], key=lambda field: field.path.split(".")[:-1])]


def in_yaml(fields: Sequence[Field], machine: str, date: str, file: Path) -> str:
    """The whole file."""
    head = [
        f"# Written by `swarm init` on {date} for {machine}.",
        f"# Start the node:            swarm join {file}",
        f"# Check this file:           swarm config check {file}",
        f"# All fields and defaults:   swarm config show {file}, and docs/configuration.md",
        "# Tasks, group size and mix are the run's, unless you set them here.",
        "",
    ]
    return "\n".join([*head, *_lines(fields), ""])


def _lines(fields: Sequence[Field]) -> Iterator[str]:
    inside: list[str] = []
    for field in fields:
        *groups, leaf = field.path.split(".")
        for depth, group in enumerate(groups):
            if inside[: depth + 1] != groups[: depth + 1]:
                yield f"{INDENT * depth}{group}:"
        inside = groups
        indent = INDENT * len(groups)
        yield f"{indent}# {field.comment}"
        yield f"{indent}{leaf}: {_flow(field.value)}"


def _flow(value: JsonValue) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.strip().removesuffix("\n...").strip()


def init(file: Path, given: Given, console: Console) -> None:
    """Write a peer's configuration to `file`. Raises `ConfigError`, also when nothing would fit."""
    if file.exists():
        raise ConfigError(f"{file} exists already; name another file, or remove it")
    answers = ask(given, console)
    config = load_config(command_line=answers.pairs).config
    console.print(_looking_at(config), highlight=False, soft_wrap=True)
    from nodes.commands.costs import bandwidth, fitting, machine_in_words, memory_in_words, power  # these import torch
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
