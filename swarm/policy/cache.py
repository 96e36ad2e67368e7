"""Directories that are made once on a machine, by whichever process needs them first."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from swarm.errors import PolicyError

Progress = Callable[[int, int], None]
"""(steps done, total steps)"""


def cached(name: str) -> Path:
    """Where a directory of this name is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swarm" / name


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The cached directory `name`; `make` writes it to the path it is given if it is missing, while others wait.

    A directory is there completely or not at all. Raises `PolicyError` when it cannot be written.
    """
    directory = cached(name)
    if directory.is_dir():
        return directory
    unfinished = directory.with_name(f"{name}.partial")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.with_name(f"{name}.lock")):
            if not directory.is_dir():
                shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
                make(unfinished)
                unfinished.rename(directory)
    except OSError as error:
        raise PolicyError(
            f"{directory} cannot be written: {error.strerror or error}; free disk space there, or set XDG_CACHE_HOME"
        ) from error
    return directory


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel releases it when the process ends."""
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
