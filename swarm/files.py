"""Files and directories that are there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file atomically: readers find the earlier content until the new one is complete.

    A durable file is there after a loss of power, too. Raises `OSError`; the earlier content stays.
    """
    staging = _partial(path)
    try:
        staging.write_bytes(content)
        if durable:
            sync(staging)
        staging.replace(path)
    except OSError:
        staging.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


@contextmanager
def whole_directory(final: Path) -> Iterator[Path]:
    """A directory to make and fill within the block, which then becomes `final`, in place of an earlier one.

    Raises `OSError`, and what the block raises: nothing of it stays then.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    staging = _partial(final)
    shutil.rmtree(staging, ignore_errors=True)
    try:
        yield staging
        if final.exists():
            shutil.rmtree(final)
        staging.rename(final)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    sync(final.parent)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def sync(path: Path) -> None:
    """Flush a file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
