"""Ctrl-C at any moment of a command: one line at most, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED_AT = """
import signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
signal.signal(signal.SIGINT, signal.{handler})
sys.argv = ["swarm", *{arguments!r}]
from nodes.cli import main
{first}
try:
    main()
finally:
    {last}
"""
JOIN = ("join", "--rounds", "1")


def _interrupted(
    folder: Path,
    module: str,
    *arguments: str,
    handler: str = "default_int_handler",
    first: str = "pass",
    last: str = "pass",
) -> subprocess.CompletedProcess[str]:
    script = INTERRUPTED_AT.format(module=module, arguments=arguments, handler=handler, first=first, last=last)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, cwd=folder)


@pytest.mark.parametrize("module", ["typer", "rich.console", "nodes.cli.command", "pydantic", "swarm.errors"])
def test_an_interrupt_while_the_command_is_imported_is_one_line(tmp_path: Path, module: str) -> None:
    result = _interrupted(tmp_path, module, "--version")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_an_interrupt_while_the_arguments_are_read_is_one_line(tmp_path: Path) -> None:
    first = "import typer.main; typer.main.get_command = lambda app: signal.raise_signal(signal.SIGINT)"
    result = _interrupted(tmp_path, "", "--version", first=first)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("module", ["nodes.boot.loop", "numpy", "torch", "transformers"])
def test_an_interrupt_while_a_command_starts_is_no_traceback(tmp_path: Path, module: str) -> None:
    result = _interrupted(tmp_path, module, *JOIN)
    assert result.returncode == 130
    assert len(result.stderr.splitlines()) <= 1, result.stderr


def test_an_interrupt_while_the_interpreter_ends_is_one_line(tmp_path: Path) -> None:
    result = _interrupted(tmp_path, "", "--version", last="signal.raise_signal(signal.SIGINT)")
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


def test_an_ignored_interrupt_stays_ignored(tmp_path: Path) -> None:
    result = _interrupted(tmp_path, "typer", "--version", handler="SIG_IGN")
    assert (result.returncode, result.stderr) == (0, "")
