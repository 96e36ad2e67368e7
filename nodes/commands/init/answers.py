"""The questions of `swarm init`: each is a flag, and asked on a terminal when the flag is not given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from swarm.config import load_config
from swarm.errors import ConfigError
from swarm.foreign import NAME_CHARS, is_name
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.policy.config import TINY, check_model_path
from swarm.types import MAX_NAME_CHARS

SUGGESTED = TINY
"""It needs no hub and next to no memory."""
MAX_PORT = 65_535
WHOSE_RUN = "Address of a member whose run to join (empty: start your own)"

T = TypeVar("T")


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
