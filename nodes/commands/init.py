"""`swarm init`: asks, looks at the machine, writes a configuration that fits it, and says what it will cost.

Each question is a flag, and asked on a terminal when the flag is not given. `costs.py` says what fits, and what
it takes. A recipe is a configuration of examples/: its whole text, in which the answers replace its own values.
"""

from __future__ import annotations

import re
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

from swarm.config import CONFIG_VERSION, NodeConfig, Values, load_config, overlay
from swarm.documents import DOCS
from swarm.errors import ConfigError
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.policy.config import MADE_HERE, TINY, check_model_path
from swarm.sanitize import NAME_CHARS, clean, is_name
from swarm.settings import nearest
from swarm.types import MAX_NAME_CHARS

if TYPE_CHECKING:
    from swarm.preflight.check import Changes

SUGGESTED = TINY
"""It needs no hub and next to no memory."""
MAX_PORT = 65_535
WHOSE_RUN = "Address of a member whose run to join (empty: start your own)"

T = TypeVar("T")

EXAMPLES = DOCS.with_name("examples")
INDENT = "  "
TO_FIT = "Set so that the node fits into this machine's memory."


class Given(Struct, frozen=True):
    """The flags; None for those not given."""

    bootstrap: tuple[str, ...] | None = None
    run_name: str | None = None
    model: str | None = None
    name: str | None = None
    port: int | None = None
    recipe: str | None = None


class Recipe(Struct, frozen=True):
    """A configuration that comes with the package."""

    file: Path
    text: str

    @property
    def values(self) -> Values:
        """The fields that it sets."""
        found: Values = yaml.safe_load(self.text)
        return found

    @property
    def command(self) -> str:
        """The subcommand that its node is started with."""
        return "learn" if "learner" in self.values else "join"

    @property
    def model(self) -> str:
        """Its model."""
        policy = self.values.get("policy")
        return str(policy["model"]) if isinstance(policy, dict) and "model" in policy else SUGGESTED

    @property
    def title(self) -> str:
        """The beginning of what it says of itself."""
        said = re.match(r"(?:# .*\n)+", self.text)
        return re.split(r"[.:](?:\s|$)", said[0].replace("\n# ", " ")[2:])[0] if said else ""


def recipes() -> dict[str, Recipe]:
    """All recipes by name: the configurations that need no other file of their folder."""
    read = {path.stem: Recipe(path, path.read_text()) for path in sorted(EXAMPLES.glob("*.yaml"))}
    needs_more = re.compile(r"^[^#\n]*examples/", re.MULTILINE)
    return {name: each for name, each in read.items() if "run_name:" in each.text and not needs_more.search(each.text)}


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
    recipe: str = ""
    """Empty: none."""

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
    has_terminal = sys.stdin.isatty()
    if not has_terminal and not (given.recipe or (given.model and chosen_run)):
        raise ConfigError(
            "there is no terminal to ask on: give --model MODEL, and --bootstrap ADDRESS or --run-name NAME; or give "
            "--recipe NAME, which has a model and the name of a run"
        )
    asking = _Asking(console, has_terminal)
    joined = _addresses(" ".join(given.bootstrap or ()))
    if not chosen_run:
        joined = asking(WHOSE_RUN, None, "", _addresses)
    recipe = given.recipe or ""
    if given.recipe is None and has_terminal and not joined:
        console.print(_listed(recipes()))
        recipe = asking("Recipe (empty: none)", None, "", _recipe_name)
    return Answers(
        bootstrap=joined,
        recipe=recipe,
        run_name=None if given.run_name is None else _run_name(given.run_name),
        model=asking(
            "Model: a hub id such as Qwen/Qwen2.5-0.5B-Instruct, a directory, smollm2 or tiny",
            given.model,
            _recipe(recipe).model if recipe else SUGGESTED,
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


def _listed(known: dict[str, Recipe]) -> Table:
    rows = Table.grid(padding=(0, 2))
    for name, recipe in known.items():
        rows.add_row(Text(name, "bold"), Text(recipe.title))
    return rows


def _recipe_name(text: str) -> str:
    """A recipe's name, or empty. Raises `ConfigError`."""
    if text:
        _recipe(text)
    return text


def _recipe(name: str) -> Recipe:
    """The recipe of this name. Raises `ConfigError`."""
    known = recipes()
    if name not in known:
        hint = nearest(name, known)
        near = f"; did you mean {hint}?" if hint else ""
        raise ConfigError(f"--recipe must be one of {', '.join(known)}, got {clean(name)!r}{near}")
    return known[name]


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


def _start(recipe: Recipe | None, file: Path) -> str:
    return f"swarm {recipe.command if recipe else 'join'} {file}"


def in_yaml(fields: Sequence[Field], machine: str, date: str, file: Path, recipe: Recipe | None = None) -> str:
    """The whole file: these fields, in or above those of a recipe."""
    head = [
        f"# Written by `swarm init` on {date} for {machine}.",
        f"# Start the node:            {_start(recipe, file)}",
        f"# Check this file:           swarm config check {file}",
        f"# All fields and defaults:   swarm config show {file}, and docs/configuration.md",
        "# Tasks, group size and mix are the run's, unless you set them here.",
        "",
    ]
    return "\n".join([*head, *(_lines(fields) if recipe is None else _with_recipe(fields, recipe, file)), ""])


def _with_recipe(fields: Sequence[Field], recipe: Recipe, file: Path) -> Iterator[str]:
    """A recipe's groups are as written where no field changes them."""
    values = recipe.values
    merged = overlay(values, *map(_nested, fields))
    yield from _lines([each for each in fields if each.path.split(".")[0] not in values])
    text = recipe.text.replace(f"examples/{recipe.file.name}", str(file))
    for block in re.split(r"^(?=\w+:)", f"\n{text}", flags=re.MULTILINE):
        group = block.partition(":")[0]
        if group not in values or merged[group] == values[group]:
            yield block.removesuffix("\n")
            continue
        yield from (f"# {each.path}: {each.comment}" for each in fields if each.path.split(".")[0] == group)
        yield yaml.safe_dump({group: merged[group]}, sort_keys=False, allow_unicode=True, width=116).rstrip()


def _nested(field: Field) -> Values:
    *groups, leaf = field.path.split(".")
    nested: Values = {leaf: field.value}
    for group in reversed(groups):
        nested = {group: nested}
    return nested


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
    recipe = _recipe(answers.recipe) if answers.recipe else None
    config = load_config(recipe.file if recipe else None, command_line=answers.pairs).config
    console.print(_looking_at(config), highlight=False, soft_wrap=True)
    from nodes.commands.costs import bandwidth, fitting, machine_in_words, memory_in_words, power  # these import torch
    from swarm.policy.devices import find_device
    from swarm.preflight.check import with_settings

    found, changes, unknown = fitting(config)
    machine, today = machine_in_words(find_device("auto")), time.strftime("%Y-%m-%d")
    text = in_yaml(fields_of(answers, changes), machine, today, file, recipe)
    try:
        file.write_text(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}; name another file") from error
    chosen = with_settings(config, changes)
    console.print(Text(f"wrote {file}; start it with: ").append(_start(recipe, file), "bold"), soft_wrap=True)
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
