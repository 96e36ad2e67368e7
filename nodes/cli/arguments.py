"""Rewrites a command line for the parser, which knows neither configuration fields nor options of several values."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.errors import ConfigError

FIELD_COMMANDS = frozenset(
    {"join", "learn", "work", "bootstrap", "evaluate", "doctor", "config show", "sweep", "tasks try", "tasks strategy"}
)
"""Commands with a configuration, whose fields may be given as options."""

SEVERAL = {"sweep": "--mix", "evaluate": "--suite"}
"""By command: its option that takes several values."""

Fields = list[tuple[str, str]]
"""(dotted path, text) of configuration fields given on the command line."""


def rewrite(given: Sequence[str]) -> tuple[list[str], Fields]:
    """Arguments for the parser, and the configuration fields among those given.

    Raises `ConfigError` for a field without a value, or with a command that has no configuration.
    """
    if list(given[:2]) == ["service", "install"]:
        return list(given), []  # the rest is another command's line
    arguments, fields = split_fields(given)
    if several := SEVERAL.get(arguments[0] if arguments else ""):
        arguments = repeat_option(arguments, several)
    if arguments[:1] == ["tasks"] and arguments[1:2] not in (["list"], ["try"], ["strategy"], ["--help"]):
        arguments.insert(1, "list")
    if fields and not FIELD_COMMANDS & {*arguments[:1], " ".join(arguments[:2])}:
        raise ConfigError(f"--{fields[0][0]} is a configuration field, which this command does not accept")
    return arguments, fields


def split_fields(arguments: Sequence[str]) -> tuple[list[str], Fields]:
    """Split options such as `--mix.local 3` and `--mix.local=3` from a command line: a dot marks a field.

    Raises `ConfigError` for a field without a value.
    """
    rest: list[str] = []
    fields: Fields = []
    waiting = iter(arguments)
    for argument in waiting:
        path, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or "." not in path:
            rest.append(argument)
            continue
        text = value if equals else next(waiting, None)
        if text is None:
            raise ConfigError(f"--{path} needs a value")
        fields.append((path.replace("-", "_"), text))
    return rest, fields


def repeat_option(arguments: Sequence[str], name: str) -> list[str]:
    """`--mix A B` as `--mix A --mix B`: the parser's options take one value each."""
    repeated: list[str] = []
    inside = False
    for argument in arguments:
        inside = argument == name or (inside and not argument.startswith("-"))
        if inside and repeated[-1:] != [name]:
            repeated.append(name)
        if argument != name:
            repeated.append(argument)
    return repeated
