from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodes.cli import main
from swarm.policy.tiny import ensure_tiny


@pytest.fixture(scope="session", autouse=True)
def _embedded_policy() -> None:
    """Made once before the processes of the tests would race to make it."""
    ensure_tiny()


@pytest.fixture
def run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int | str | None, str]]:
    """Runs a command in this process, which has imported already what takes others seconds: exit code and errors, or
    output."""

    def run(*arguments: str, stream: str = "err") -> tuple[int | str | None, str]:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["swarm", *arguments])
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return ended.value.code, getattr(capsys.readouterr(), stream)

    return run
