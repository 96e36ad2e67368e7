"""Commands with a log, steps that say how long they took, and how a test ends early."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "compose-test"


class Skipped(Exception):
    """No container can be run here."""


class Failed(Exception):
    """Something that had to happen did not."""


def run(*command: str, timeout_s: float = 600, quiet: bool = False, successes: Collection[int] = (0,)) -> str:
    """Standard output of a command that must succeed. What it says goes to the log, and is shown when it fails."""
    with open(WORK / "log.txt", "a+") as log:
        log.write(f"$ {' '.join(command[:12])}\n")
        log.flush()
        said_from = log.tell()
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=timeout_s, cwd=ROOT)
        log.seek(said_from)
        said = log.read()
        log.write(result.stdout)
    failed = result.returncode not in successes
    if failed and not quiet:
        print((result.stdout + said)[-4000:], file=sys.stderr)
    if failed:
        raise Failed(f"{' '.join(command[:6])} ended with {result.returncode}")
    return result.stdout


def succeeds(*command: str, timeout_s: float = 60) -> bool:
    """Whether a command runs and ends with 0."""
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout_s).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Says what is done and how long it took."""
    print(f"{name} ...", flush=True)
    began = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)


def wait_until(what: str, done: Callable[[], object], limit_s: float) -> None:
    """Look every two seconds until `done()`."""
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise Failed(f"not within {limit_s:.0f} s: {what}")
        time.sleep(3)
