"""What is refused at once, in words; and commands that print what they promise."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodes.boot.directory import disk_problem, refuse_at_once
from nodes.cli import main
from swarm.config import load_config
from swarm.errors import ConfigError
from swarm.net.records.identity import Identity

LIGHT = """
import sys
from nodes.cli import main
try:
    main()
finally:
    print([name for name in ("torch", "transformers", "hivemind", "swarm.config") if name in sys.modules])
"""


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    """Runs a command in this process: exit code, output, errors."""

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["swarm", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("/ip4/127.0.0.1/tcp/1", "must look like /ip4/HOST/tcp/PORT/p2p/PEER_ID"),
        ("/ip4/127.0.0.1/tcp/1/p2p/12D3KooW", "contains no valid peer id"),
        ("/ip4/127.0.0.1/tcp/1/p2p/12D3KooWAXBYGzwuVb6KmHi96Mes9QS4qw2tJgcmGL39xp92p9", "contains no valid peer id"),
    ],
)
def test_an_address_is_refused_before_anything_slow_is_imported(tmp_path: Path, address: str, message: str) -> None:
    command = [sys.executable, "-c", LIGHT, "join", address]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert result.stdout == "starting `swarm join` ...\n[]\n", "these imports take seconds"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "line"), [("learn", "starting `swarm learn` ..."), ("demo", "starting a swarm on")]
)
def test_the_first_line_is_there_before_anything_slow_is_imported(tmp_path: Path, command: str, line: str) -> None:
    stop = "from nodes.cli import running; running.say_starting = lambda what: print('starting', what, '...') or exit()"
    result = subprocess.run(
        [sys.executable, "-c", stop + LIGHT, command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.stdout.startswith(line) and result.stdout.endswith("[]\n"), result


@pytest.mark.parametrize("command", ["join", "learn", "work", "bootstrap"])
def test_a_directory_in_use_and_a_taken_port_are_refused_at_once(
    tmp_path: Path, run: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    identity = Identity.load_or_create(tmp_path / "used" / "identity.key")
    code, _, errors = run(command, "--out", "used")
    assert code == 2 and "in use by another process" in errors
    monkeypatch.setenv("RANK", "1")
    refuse_at_once(load_config(command_line=[("out", str(tmp_path / "used"))]))  # torchrun's first process has it
    monkeypatch.delenv("RANK")
    identity.close()
    monkeypatch.setattr("swarm.net.addresses.listening.PATIENCE_S", 0.0)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"
        code, _, errors = run(command, "--network.listen", address)
    assert code == 3 and f"cannot listen on {address}: it is taken; end the process that has this port" in errors


def test_a_directory_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, run: Callable[..., tuple[object, str, str]]
) -> None:
    (tmp_path / "file").write_text("mine")
    code, _, errors = run("join", "--out", "file/peer")
    assert code == 2 and f"out: {tmp_path / 'file'} is a file; choose another directory with --out" in errors


def test_a_full_disk_is_one_line_and_a_mistake_of_ours_is_not(
    run: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/peer/metrics.jsonl")

    monkeypatch.setattr("nodes.commands.reference.list_losses", fail)
    code, _, errors = run("losses")
    assert code == 1 and len(errors.splitlines()) == 1
    assert "error: runs/peer/metrics.jsonl cannot be written or read: no space left on device; free disk" in errors
    assert disk_problem(FileNotFoundError(errno.ENOENT, "No such file or directory", "x")) is None
    assert disk_problem(IsADirectoryError(errno.EISDIR, "Is a directory", "out/run.manifest"))


def test_the_configuration_is_shown_as_a_table_with_every_value_as_it_is(
    run: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output, _ = run("config", "show", "--network.announce", "/ip4/1.2.3.4/tcp/1")
    assert code == 0
    assert any(line.split() == ["network.listen", "[/ip4/0.0.0.0/tcp/0]", "default"] for line in output.splitlines())
    assert any("[/ip4/1.2.3.4/tcp/1]" in line and "command line" in line for line in output.splitlines())


def test_a_file_is_checked_alone(tmp_path: Path, run: Callable[..., tuple[object, str, str]]) -> None:
    (tmp_path / "my.yaml").write_text("name: me\nmix:\n  lokal: 3\n  external: -1\n")
    code, _, errors = run("config", "check", "my.yaml")
    assert code == 2 and errors.splitlines() == [
        "error: mix.external (from my.yaml, line 4): must be at least 0, got -1",
        "mix.lokal (from my.yaml, line 3): there is no such field; did you mean mix.local?",
    ]
    (tmp_path / "my.yaml").write_text("name: me\nmix: {local: 3}\n")
    assert run("config", "check", "my.yaml")[:2] == (0, "my.yaml is valid and sets 2 fields\n")


def test_help_shows_a_worker_and_where_fields_are_listed(run: Callable[..., tuple[object, str, str]]) -> None:
    assert "8x1.5@0.40*0.95" in run("plan", "--help")[1]
    for command in ("join", "learn", "work"):
        assert "swarm config show" in run(command, "--help")[1]
    assert "--install-completion" in run("--help")[1]


@pytest.mark.parametrize("module", ["swarm", "nodes.cli"])
def test_the_version_is_printed(module: str) -> None:
    result = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("swarm ") and ", schema " in result.stdout


@pytest.mark.parametrize(("typed", "completed"), [("jo", "join"), ("config ch", "check")])
def test_a_shell_completes_commands(typed: str, completed: str) -> None:
    words = f"swarm {typed}"
    environment = {"_SWARM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    command = [sys.executable, "-c", "import sys; from nodes.cli import main; sys.argv = ['swarm']; main()"]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert result.stdout.split() == [completed]


def test_a_schedule_by_gpu_use_is_refused_with_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_config(None, {"out": str(tmp_path), "schedule": {"gpu_idle_s": 300}})
    refuse_at_once(loaded)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="schedule.gpu_idle_s: leave it out with several processes"):
        refuse_at_once(loaded)
