"""Files and directories that are there as a whole or not at all, and those that only their owner may read."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

NUM_SAMPLES, SAMPLE_BYTES = 16, 2**16
PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
OF_OTHERS = 0o077
"""What other users of the machine may do."""
FLAGS = {"ab": os.O_WRONLY | os.O_APPEND, "a+b": os.O_RDWR | os.O_APPEND, "wb": os.O_WRONLY | os.O_TRUNC}


def at_home(path: Path | str) -> Path:
    """The path with a leading `~` replaced by the user's home, or as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def sampled_digest(path: Path) -> str:
    """Digest of parts of a file from its beginning to its end, and of no more than 1 MiB. Raises `OSError`."""
    size, found = path.stat().st_size, hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        for number in range(NUM_SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * number // (NUM_SAMPLES - 1))
            found.update(file.read(SAMPLE_BYTES))
    return found.hexdigest()


def private_directory(path: Path) -> bool:
    """Make a directory, or take an existing one, for its owner alone; whether it is now.

    One of another user, and a common one such as /tmp, stays as it is. Raises `OSError` where it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
    if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & stat.S_ISVTX:
        with suppress(OSError):  # some file systems have no modes
            path.chmod(PRIVATE_DIRECTORY)
    return not path.stat().st_mode & OF_OTHERS


def open_private(path: Path, mode: Literal["ab", "a+b", "wb"]) -> IO[bytes]:
    """Open a file that only its owner may read. Raises `OSError`."""
    descriptor = os.open(path, FLAGS[mode] | os.O_CREAT, PRIVATE_FILE)
    with suppress(OSError):  # another user's, or a file system without modes
        os.fchmod(descriptor, PRIVATE_FILE)
    return os.fdopen(descriptor, mode)


def replace_file(path: Path, content: bytes, *, durable: bool = False, mode: int = PRIVATE_FILE) -> None:
    """Replace a file atomically: readers find the earlier content until the new one is complete.

    A durable file is there after a loss of power, too. Raises `OSError`; the earlier content stays.
    """
    staging = _partial(path)
    try:
        staging.touch(mode)
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
