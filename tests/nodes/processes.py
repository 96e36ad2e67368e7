"""Real `swarm` processes for tests, and waiting for what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from nodes.simulation.children import start_command
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE

LOOPBACK = [
    "--network.listen=/ip4/127.0.0.1/tcp/0",
    "--network.nat_port_map=false",
    "--network.announce_every_s=2",
    "--network.retry_s=0.5",
]
DEADLINE_S = 300.0
"""A busy machine takes minutes for what takes seconds otherwise; only what never comes takes that long."""


class Command:
    """A `swarm` process as the demo starts its own, with the interface of `subprocess.Popen`."""

    def __init__(self, log: Path, arguments: Sequence[str], module: str = "nodes.cli") -> None:
        with open(os.devnull, "rb") as nothing, Connection(os.dup(nothing.fileno()), writable=False) as stdin:
            self._process = start_command(module, arguments, log, stdin)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("swarm", timeout_s or 0.0)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


class Torchrun(subprocess.Popen[bytes]):
    """Several processes of one node."""

    def __init__(self, log: Path, arguments: Sequence[str], num_processes: int) -> None:
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
        torchrun.append(f"--shutdown-timeout={DEADLINE_S:.0f}")  # else it kills after 30 s what is only slow to end
        super().__init__(
            [sys.executable, "-m", *torchrun, "-m", "nodes.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Swarm:
    """One process of the `swarm` command and what it starts; or torchrun with several of them; or another module."""

    def __init__(self, out: Path, *arguments: str, num_processes: int = 1, module: str = "nodes.cli") -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.log = out / "test-log.txt"
        self._history = PeerHistory(out / METRICS_FILE)
        self.process = (
            Torchrun(self.log, arguments, num_processes) if num_processes > 1 else Command(self.log, arguments, module)
        )

    def history(self) -> PeerHistory:
        """All so far, the same object each time: tests ask often, and each line is read once."""
        self._history.tail()
        return self._history

    def round(self) -> int:
        latest = self.history().latest
        return latest.round if latest else 0

    def tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.text()}") from None

    def text(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def swarm(out: Path, *arguments: str, num_processes: int = 1, module: str = "nodes.cli") -> Iterator[Swarm]:
    """A process that is gone afterwards, whatever happens."""
    running = Swarm(out, *arguments, num_processes=num_processes, module=module)
    try:
        yield running
    finally:
        tree = running.tree()
        for process in tree:
            if process.is_running():
                process.kill()
        psutil.wait_procs(tree, timeout=DEADLINE_S)
        running.process.wait()


def address_of(running: Swarm) -> str:
    file = running.out / "multiaddrs"
    until(lambda: file.exists(), running, "an address")
    return file.read_text().split()[0]


def until(condition: Callable[[], bool], running: Swarm, what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait for something to come true while a process runs."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if running.process.poll() is not None and not condition():
            raise AssertionError(f"exited with {running.process.returncode} before {what}:\n{running.text()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {timeout_s} s:\n{running.text()}")
        time.sleep(0.05)


def gone(processes: list[psutil.Process], timeout_s: float = DEADLINE_S) -> bool:
    """Whether all of them end in time, be it that nobody has asked yet how."""
    deadline = time.monotonic() + timeout_s
    while any(map(_runs, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def command_of(process: psutil.Process) -> list[str]:
    """A process's command line; empty once it has ended, as any process of another may do at any time."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def writes_to(process: psutil.Process, log: Path) -> bool:
    """Whether a process, still there, has this log as its output."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
        return os.readlink(f"/proc/{process.pid}/fd/1") == str(log)
    return False


def is_daemon(process: psutil.Process) -> bool:
    """Whether it is hivemind's daemon, and still there."""
    return any(part.endswith("p2pd") for part in command_of(process)[:1])


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def summary(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def balanced(peer: dict[str, Any]) -> bool:
    """Every received group was used, dropped for a reason, or is still held."""
    groups = peer["groups"]
    held = peer["pool"] + peer["pending"]
    return bool(groups["received"] == groups["used_external"] + sum(groups["dropped"].values()) + held)
