"""The processes of a simulation; stops them with their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SUPERVISED = "--supervised"
"""The option with which a child ends when its parent has died."""
STOP_TIMEOUT_S = 4.0
POLL_S = 0.05
LOG_TAIL_LINES = 5


class Child:
    """One process, leader of a session of its own: Ctrl-C in the terminal reaches only its parent."""

    def __init__(self, name: str, arguments: Sequence[str], out: Path, module: str = "nodes.cli") -> None:
        """`arguments` of the `swarm` command, whose module is `module`; output goes to `OUT/log.txt`."""
        self.name = name
        self.restarts = 0
        self.given_up = False
        self._command = [sys.executable, "-m", module, *arguments, SUPERVISED]
        self._log = out / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start or restart."""
        self.signal(signal.SIGKILL)  # leftovers of an earlier process's session
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,  # never written to: its end tells the child that this process died
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        """Process id, and id of its session."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process; None while it runs."""
        return self._process.poll() if self._process else None

    @property
    def finished(self) -> bool:
        """Whether it shut down cleanly or must not be restarted."""
        return self.given_up or self.exit_code == 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole session; a dead session is not an error."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def interrupt(self) -> None:
        """Ask only the process itself to shut down cleanly."""
        if self._process is not None and self.running:
            self._process.terminate()

    def last_words(self) -> str:
        """The end of its log."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


def stop_all(children: Sequence[Child]) -> None:
    """Ask every process to stop, wait briefly, then kill the rest with their children."""
    for child in children:
        child.interrupt()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(child.running for child in children) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for child in children:
        child.signal(signal.SIGKILL)
