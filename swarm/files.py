"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file atomically: readers find the earlier content until the new one is complete.

    A durable file is there after a loss of power, too. Raises `OSError`; the earlier content stays.
    """
    staging = path.with_name(f".{path.name}.{os.getpid()}.partial")
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


def sync(path: Path) -> None:
    """Flush a file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
