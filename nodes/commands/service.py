"""`swarm service install`: has the machine start a node, and start it again when it fails.

On Linux it writes a unit of systemd for this user, on macOS a property list for launchd. The service runs the same
command in the same folder with the same Python, and stops it as Ctrl-C does: with a checkpoint.
"""

from __future__ import annotations

import plistlib
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from rich.console import Console

from nodes import exits
from swarm.errors import ConfigError

System = Literal["systemd", "launchd"]

COMMANDS = ("join", "learn", "work", "bootstrap")
NICENESS = 10
STOP_TIMEOUT_S = 300
"""A round is completed and a checkpoint written first."""
RESTART_AFTER_S = 10
RESTARTS, WITHIN_S = 5, 600


class Service(Struct, frozen=True):
    """A node as a service."""

    name: str
    """Letters, digits and `-`."""
    command: tuple[str, ...]
    """Arguments of `swarm`."""
    folder: Path
    """Working directory."""


def install_service(command: Sequence[str], name: str, show: bool, console: Console) -> None:
    """Write the service's file and say how to start it, or only `show` the file. Raises `ConfigError`."""
    service = Service(name, tuple(command), Path.cwd())
    check(service)
    system: System = "launchd" if sys.platform == "darwin" else "systemd"
    text = content(service, system)
    if show:
        print(text, end="")
        return
    file = path(service, system, Path.home())
    if file.exists() and file.read_text() != text:
        raise ConfigError(f"{file} is there already, with other content: choose another --name, or remove it")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    console.print(f"wrote {file}", markup=False, highlight=False, soft_wrap=True)
    for line in next_steps(service, system, file):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def check(service: Service) -> None:
    """Raises `ConfigError` for what cannot be a service."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,40}", service.name):
        raise ConfigError(f"--name must be up to 41 letters, digits and -, got {service.name!r}")
    if not service.command or service.command[0] not in COMMANDS:
        raise ConfigError(f"name the command to run: one of {', '.join(COMMANDS)}, with its options")
    if any(not argument.isprintable() for argument in (*service.command, str(service.folder))):
        raise ConfigError("a service's command and folder must be printable text on one line")


def content(service: Service, system: System) -> str:
    """The unit, or the property list."""
    return _plist(service) if system == "launchd" else _unit(service)


def path(service: Service, system: System, home: Path) -> Path:
    """Where the system looks for it."""
    if system == "launchd":
        return home / "Library" / "LaunchAgents" / f"{_label(service)}.plist"
    return home / ".config" / "systemd" / "user" / f"{_label(service)}.service"


def next_steps(service: Service, system: System, file: Path) -> list[str]:
    """What a person does next."""
    if system == "launchd":
        return [
            f"start it:  launchctl bootstrap gui/$(id -u) {shlex.quote(str(file))}",
            f"stop it:   launchctl bootout gui/$(id -u)/{_label(service)}",
        ]
    label = _label(service)
    return [
        f"start it:  systemctl --user daemon-reload && systemctl --user enable --now {label}",
        "keep it running when you log out:  loginctl enable-linger",
        f"see it:    systemctl --user status {label}; journalctl --user --unit {label} --follow",
        f"stop it:   systemctl --user disable --now {label}",
    ]


def _label(service: Service) -> str:
    return f"swarm-{service.name}"


def _arguments(service: Service) -> list[str]:
    return [sys.executable, "-m", "swarm", *service.command]


def _unit(service: Service) -> str:
    return f"""\
# Written by `swarm service install`.
[Unit]
Description=swarm {service.command[0]} ({service.name})
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec={WITHIN_S}
StartLimitBurst={RESTARTS}

[Service]
WorkingDirectory={_escaped(str(service.folder))}
ExecStart={" ".join(_quoted(argument) for argument in _arguments(service))}
KillSignal=SIGINT
KillMode=mixed
TimeoutStopSec={STOP_TIMEOUT_S}
SuccessExitStatus={exits.INTERRUPTED}
Restart=on-failure
RestartSec={RESTART_AFTER_S}
RestartPreventExitStatus={exits.USAGE}
Nice={NICENESS}

[Install]
WantedBy=default.target
"""


def _quoted(argument: str) -> str:
    """An argument as a unit's command line has it: nothing in it is expanded."""
    text = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(text).replace("$", "$$")}"'


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _plist(service: Service) -> str:
    log = str(Path.home() / "Library" / "Logs" / f"{_label(service)}.log")
    return plistlib.dumps(
        {
            "Label": _label(service),
            "ProgramArguments": _arguments(service),
            "WorkingDirectory": str(service.folder),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART_AFTER_S,
            "ExitTimeOut": STOP_TIMEOUT_S,
            "Nice": NICENESS,
            "StandardOutPath": log,
            "StandardErrorPath": log,
        },
        sort_keys=False,
    ).decode()
