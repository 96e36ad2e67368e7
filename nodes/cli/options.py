"""The command line: options of several subcommands, and what happens before it is parsed.

The parser knows neither configuration fields nor options of several values: a command line is rewritten for it, and
refused with a suggestion where it names a command, option or target that does not exist.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from swarm.errors import ConfigError

if TYPE_CHECKING:
    from swarm.config import LoadedConfig

FIELD_COMMANDS = frozenset(
    {
        "join",
        "learn",
        "work",
        "bootstrap",
        "evaluate",
        "give",
        "answer",
        "doctor",
        "config show",
        "sweep",
        "tasks try",
        "tasks strategy",
    }
)
"""Commands with a configuration, whose fields may be given as options."""

SEVERAL = {"sweep": "--mix", "evaluate": "--suite"}
"""Options that take several values, by command."""

OTHER_COMMANDS = {
    "start": "`swarm join` trains as a peer, `swarm bootstrap` starts a run for others",
    "run": "`swarm join` trains as a peer, `swarm demo` runs a whole swarm on this machine",
    "train": "`swarm join` trains as a peer, with others or alone; `swarm learn` trains on its workers' rollouts",
    "learner": "it is called `swarm learn`",
    "worker": "it is called `swarm work`",
    "peer": "it is called `swarm join`",
    "giver": "it is called `swarm give`",
    "create": "`swarm bootstrap` starts a run for others; `swarm init` writes a configuration",
    "status": "`swarm top` shows the nodes of this machine, `swarm top --once` prints it once",
    "ps": "`swarm top` shows the nodes of this machine",
    "list": "`swarm top` shows the nodes of this machine, `swarm tasks` what can be learned",
    "kill": "it is called `swarm stop`",
    "log": "it is called `swarm logs`",
    "page": "it is called `swarm ui`",
    "web": "it is called `swarm ui`",
    "version": "`swarm --version` prints it",
    "help": "`swarm --help` lists the commands, `swarm docs` the documents",
    "eval": "it is called `swarm evaluate`",
    "test": "`swarm doctor` checks this machine, `swarm tasks try` a task, `make test` the program",
    "check": "`swarm doctor` checks this machine, `swarm config check` a configuration",
    "update": "`swarm docs start#upgrade-and-backup` says how to update",
    "upgrade": "`swarm docs start#upgrade-and-backup` says how to update",
}
"""Commands that people expect by their names in other programs."""

MULTIADDR_STARTS = ("/ip4/", "/ip6/", "/dns/", "/dns4/", "/dns6/", "/dnsaddr/")
NAME_AT_ADDRESS = re.compile(rf"[^@]+@(?:{'|'.join(MULTIADDR_STARTS)})")
"""A run as `swarm runs` names it."""
ADDRESS = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooW..."
WHERE = "a member prints its own at the start, and keeps it in the file `multiaddrs` of its directory"
HOST_AND_PORT = re.compile(r"(?:tcp://)?(\[[0-9a-fA-F:.]+\]|[\w.-]+):(\d{1,5})/?")
IPV4 = re.compile(r"[0-9.]+")

Fields = list[tuple[str, str]]
"""(dotted path, text) of configuration fields given on the command line."""

DEFAULT_HOME = Path("runs/peer")
ConfigArgument = Annotated[Path | None, typer.Argument(help="YAML configuration; default: the built-in one.")]
Options = dict[str, object]
"""Values of options by the field that they stand for; None for an option that was not given."""
RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(help="Directories of nodes, or of a demo; default: every node running on this machine."),
]
SupervisedOption = Annotated[bool, typer.Option("--supervised", hidden=True, help="Stop when standard input ends.")]
EngineOption = Annotated[str | None, typer.Option(help="Generation engine: auto, transformers, vllm, or custom code.")]
TargetArgument = Annotated[
    str | None,
    typer.Argument(help="YAML configuration, the multiaddr of any member of a run, or NAME@ADDRESS of `swarm runs`."),
]
BootstrapOption = Annotated[list[str] | None, typer.Option(help="Multiaddr of a member of the run; repeatable.")]
ModelOption = Annotated[str | None, typer.Option(help="Hub id, local directory, or tiny.")]
LiveOption = Annotated[bool, typer.Option(help="Draw a live view when there is a terminal.")]
OutOption = Annotated[Path | None, typer.Option(help="Directory for identity, checkpoints, metrics and reports.")]


def rewrite(given: Sequence[str]) -> tuple[list[str], Fields]:
    """Arguments for the parser, and the configuration fields among those given.

    Raises `ConfigError` for a field without a value, or with a command that has no configuration.
    """
    if list(given[:2]) == ["service", "install"]:
        return list(given), []  # the rest is another command's line
    # An address that was copied may have blanks or a line's end around it.
    bare = [each.strip() if each.strip().startswith(MULTIADDR_STARTS) else each for each in given]
    arguments, fields = split_fields(bare)
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


class Parameter(Protocol):
    """An option or argument of a command."""

    opts: list[str]
    secondary_opts: list[str]


class Command(Protocol):
    """A command; a group has `commands` by name."""

    params: list[Parameter]
    context_settings: dict[str, object]


def check_known(command: Command, arguments: Sequence[str]) -> None:
    """Raises `ConfigError` for a command or an option that there is not, and says which there is."""
    words: list[str] = []
    waiting = deque(arguments)
    while (commands := getattr(command, "commands", None)) and waiting and not waiting[0].startswith("-"):
        words.append(waiting.popleft())
        if words[-1] not in commands:
            raise ConfigError(_no_command(words, commands))
        command = commands[words[-1]]
    if command.context_settings.get("ignore_unknown_options"):
        return
    known = [name for each in command.params for name in (*each.opts, *each.secondary_opts)]
    for argument in waiting:
        name = argument.partition("=")[0]
        if name == "--":
            return
        if name.startswith("--") and name not in (*known, "--help"):
            raise ConfigError(_no_option(" ".join(words), name, known))


def wrong_use(problem: str, arguments: Sequence[str]) -> str:
    """What the parser says of these arguments, in this program's words."""
    from swarm.settings import in_words

    found = re.fullmatch(r"Invalid value for '?(\S+?)'?: (.*)", problem, re.DOTALL)
    if found is None:
        return f"{problem[:1].lower()}{problem[1:].removesuffix('.')}"
    name, said = found.groups()
    words = in_words(said)
    separate = [part for each in arguments for part in each.split("=", 1)]
    given = [value for option, value in pairwise(separate) if option == name]
    got = f", got {given[-1]!r}" if given else ""
    return f"{name} {words}{got}" if words.startswith("must ") else f"{name}: {words.removesuffix('.')}{got}"


def _no_command(words: Sequence[str], commands: Iterable[str]) -> str:
    *parents, word = words
    whole = " ".join(("swarm", *parents))
    if not parents and word in OTHER_COMMANDS:
        return f"there is no command {word!r}: {OTHER_COMMANDS[word]}"
    from swarm.settings import nearest

    near = nearest(word, commands)
    return f"there is no command {word!r}{f', did you mean `{whole} {near}`' if near else ''}; see {whole} --help"


def _no_option(command: str, name: str, known: Sequence[str]) -> str:
    from swarm.config import ENVIRONMENT_PREFIX, NodeConfig
    from swarm.settings import nearest
    from swarm.suggestions import named_fields, similar_fields

    takes_fields = command in FIELD_COMMANDS
    fields = named_fields(NodeConfig, name[2:]) if takes_fields else []
    if fields == [name[2:]]:
        where = f"in a file, or as {ENVIRONMENT_PREFIX}{name[2:].upper()}"
        return f"`swarm {command}` has no option {name}: set {name[2:]} {where}; see swarm {command} --help"
    near = [] if fields or (own := nearest(name, known)) is None else [own]
    found = [f"--{path}" for path in fields] or near
    if not found and takes_fields:
        found = [f"--{path}" for path in similar_fields(NodeConfig, name[2:])]
    meant = f", did you mean {' or '.join(found)}" if found else ""
    more = "; any field of docs/configuration.md is one, as --mix.local 6" if takes_fields and not found else ""
    whole = f"swarm {command}".strip()
    return f"`{whole}` has no option {name}{meant}{more}; see {whole} --help"


def is_address(target: str) -> bool:
    """Whether a target is an address and no directory. Raises `ConfigError` for what is nearly one."""
    if target.startswith(MULTIADDR_STARTS):
        return True
    if not Path(target).exists() and (problem := no_address(target)):
        raise ConfigError(problem)
    return False


def no_target(target: str) -> str:
    """Why this is neither a configuration nor an address, and what would be."""
    if Path(target).is_dir():
        return (
            f"{target} is a directory: if it is a node's, --out {target} goes on with it; otherwise give a YAML file, "
            f"or the address of a member, such as {ADDRESS}"
        )
    if problem := no_address(target):
        return problem
    if target.endswith((".yaml", ".yml")):
        return f"there is no file {target}; `swarm init {target}` writes one"
    model = f"; for a model of this name give --model {target}" if _may_be_model(target) else ""
    return (
        f"{target} is neither a file nor an address: give a YAML file, which `swarm init` writes, or the address of a "
        f"member, such as {ADDRESS} ({WHERE}){model}"
    )


def no_address(text: str) -> str | None:
    """What an address lacks that is nearly one; None for what is none at all."""
    from swarm.net.records.identity import is_peer_id

    if is_peer_id(text):
        whole = f"/ip4/203.0.113.7/tcp/4001/p2p/{text}"
        return f"{text} is a peer id alone; an address says where the peer is, too, such as {whole}; {WHERE}"
    if found := HOST_AND_PORT.fullmatch(text):
        host, port = found[1].strip("[]"), found[2]
        kind = "ip6" if ":" in host else "ip4" if IPV4.fullmatch(host) else "dns"
        return (
            f"{text} is a host and a port; an address names the peer, too, so that nobody can pose as it: "
            f"/{kind}/{host}/tcp/{port}/p2p/ID, with its peer id at the end; {WHERE}"
        )
    if text.startswith(("http://", "https://")):
        return f"{text} is an address of the web; a member's is such as {ADDRESS}; {WHERE}"
    if "/p2p/" in text or (text.startswith("/") and "/tcp/" in text):
        return f"{text} is no address: one begins with {', '.join(MULTIADDR_STARTS)}, such as {ADDRESS}; {WHERE}"
    return None


def _may_be_model(text: str) -> bool:
    from swarm.policy.config import HUB_ID, MADE_HERE
    from swarm.settings import nearest

    return text in MADE_HERE or nearest(text, MADE_HERE) is not None or ("/" in text and bool(HUB_ID.fullmatch(text)))


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


def say_starting(what: str) -> None:
    """Print a first line before anything slow is imported; of torchrun's processes the first does."""
    if os.environ.get("RANK", "0") == "0":
        print(f"starting {what} ...", flush=True)


def find_target(target: str | None, bootstraps: Sequence[str] | None) -> tuple[Path | None, Fields]:
    """The configuration file and bootstraps in a command's arguments.

    Raises `ConfigError` for a wrong address, and for a target that is neither.
    """
    from swarm.net.addresses.bootstrap import Bootstraps  # light: a wrong address is refused before anything is read

    if target is not None and NAME_AT_ADDRESS.match(target) and not Path(target).is_file():
        from nodes.commands.runs import resolve

        Bootstraps([*(bootstraps or ()), target.partition("@")[2]])
        return None, [*(("network.bootstrap", each) for each in bootstraps or ()), *resolve(target)]
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
