"""What is printed where: streams that are closed, and texts that mean something to the terminal's library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from nodes.console import literal_console

ROOT = Path(__file__).parents[2]
SWARM = f"{sys.executable} -m nodes.cli"


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["config show", "config check missing.yaml", "reasons"])
def test_a_command_runs_with_streams_that_are_closed(command: str, closed: str, tmp_path: Path) -> None:
    script = f"{SWARM} {command} {closed}"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert ran.returncode == (2 if "missing" in command else 0), ran.stderr
    assert "Traceback" not in ran.stderr and ("2>" in closed or "missing" not in command or "cannot read" in ran.stderr)


def test_what_is_opened_later_does_not_take_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    program = (
        "from nodes.console import open_streams; open_streams(); kept = open('kept', 'w'); print('noise');"
        "import subprocess; subprocess.run(['echo', 'more']); kept.write('ours')"
    )
    script = f'{sys.executable} -c "{program}" >&-'
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, timeout=120, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    )
    assert ran.returncode == 0 and (tmp_path / "kept").read_text() == "ours"


def test_texts_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold]a[/bold] :smile: [link=x]b[/] [1] \\[c]"
    console = literal_console(width=200)
    console.print(text)
    table = Table("x")
    table.add_row(text)
    console.print(table)
    assert capsys.readouterr().out.count(text) == 2


def test_all_consoles_print_texts_as_they_are() -> None:
    made = [
        f"{path.relative_to(ROOT)}: {call}"
        for part in ("swarm", "nodes", "benchmarks")
        for path in (ROOT / part).rglob("*.py")
        for call in re.findall(r"\bConsole\([^\n]*", path.read_text())
        if path.name != "console.py" and not ("markup=False" in call and "emoji=False" in call)
    ]
    assert made == []


def test_names_that_look_like_markup_are_printed_by_commands(tmp_path: Path) -> None:
    (tmp_path / ":smile: [bold]x[1].yaml").write_text("rounds: 3\n")
    ran = subprocess.run(
        [sys.executable, "-m", "nodes.cli", "config", "check", ":smile: [bold]x[1].yaml"],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert ran.stdout.startswith(":smile: [bold]x[1].yaml is valid"), ran.stdout + ran.stderr
