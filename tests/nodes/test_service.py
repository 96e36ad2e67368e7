"""A node as a service: the file is what systemd and launchd read, and says the command as it was given."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from nodes.cli import app
from nodes.cli.options import rewrite
from nodes.commands import service
from nodes.commands.service import Service
from swarm.errors import ConfigError

ODD = ("join", "/ip4/1.2.3.4/tcp/1/p2p/12D3", "--name", 'a "b" \\ $HOME %h ${X} ; c', "--policy.system_prompt", "")


def test_the_list_of_launchd_has_the_command_as_given() -> None:
    found = plistlib.loads(service.content(Service("home", ODD, Path("/tmp")), "launchd").encode())
    assert found["ProgramArguments"] == [sys.executable, "-m", "swarm", *ODD]
    assert found["Label"] == "swarm-home" and found["WorkingDirectory"] == "/tmp"
    assert found["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "swarm-home.service"
    file.write_text(service.content(Service("home", ODD, tmp_path), "systemd"))
    found = subprocess.run(["systemd-analyze", "verify", "--user", str(file)], capture_output=True, text=True)
    assert "swarm-home" not in found.stderr, found.stderr


def test_no_argument_is_expanded_or_split_by_systemd() -> None:
    (line,) = [each for each in service.content(Service("home", ODD, Path("/tmp")), "systemd").splitlines()
               if each.startswith("ExecStart=")]  # fmt: skip
    assert line.endswith(r'''"--name" "a \"b\" \\ $$HOME %%h $${X} ; c" "--policy.system_prompt" ""''')


def test_it_is_written_where_the_system_looks_and_never_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    service.install_service(ODD, "home", False, Console(width=200))
    file = tmp_path / ".config" / "systemd" / "user" / "swarm-home.service"
    assert file.exists() and str(file) in capsys.readouterr().out
    service.install_service(ODD, "home", False, Console(width=200))  # the same again is no mistake
    assert "systemctl --user enable --now swarm-home" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="is there already, with other content"):
        service.install_service(("join",), "home", False, Console(width=200))
    service.install_service(("join",), "home", True, Console(width=200))
    assert "ExecStart=" in capsys.readouterr().out and '"a ' in file.read_text()


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "n" * 99, "a\nb"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--name must be"):
        service.check(Service(name, ("join",), Path("/tmp")))


@pytest.mark.parametrize("command", [(), ("demo",), ("rm", "-rf")])
def test_only_nodes_are_services(command: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="name the command to run"):
        service.check(Service("x", command, Path("/tmp")))


def test_a_line_break_cannot_add_a_line() -> None:
    with pytest.raises(ConfigError, match="printable text on one line"):
        service.check(Service("x", ("join", "a\nExecStartPost=/bin/true"), Path("/tmp")))


def test_options_after_the_command_are_the_command_s(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["service", "install", "--print", "join", "--name", "me", "--mix.local", "3", "--print"]
    arguments, fields = rewrite(line)
    assert fields == []
    app(args=arguments, obj=fields, standalone_mode=False)
    assert '"join" "--name" "me" "--mix.local" "3" "--print"' in capsys.readouterr().out
