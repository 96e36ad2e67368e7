"""Files and directories that are there as a whole or not at all, and those that only their owner may read."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal
from weakref import finalize

NUM_SAMPLES, SAMPLE_BYTES = 16, 2**16
COPY_BYTES = 2**24
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


class RandomAccessFile:
    """An open file. Any thread may read it as long as it is referenced, even after the file has been deleted.

    The last reference closes it, which also frees the disk space of a deleted file.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """The file at `path`, created if missing; `fresh`: a new one, in place of an earlier one. Raises `OSError`."""
        self.path = path
        if fresh:
            path.unlink(missing_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        finalize(self, os.close, self._descriptor)

    @classmethod
    def scratch(cls, folder: Path) -> RandomAccessFile:
        """An empty file on the disk of `folder`, without a name: a killed process leaves nothing. Raises `OSError`."""
        descriptor, name = tempfile.mkstemp(dir=folder)
        os.close(descriptor)
        file = cls(Path(name))
        file.path.unlink()
        return file

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def read(self, start: int, num_bytes: int) -> bytes:
        """The bytes from `start` on: fewer at the end of the file. Raises `OSError`."""
        content = os.pread(self._descriptor, num_bytes, start)
        if 0 < len(content) < num_bytes:  # one call has a limit
            return content + self.read(start + len(content), num_bytes - len(content))
        return content

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill a buffer with the bytes from `start` on; how many there were. Raises `OSError`."""
        filled = 0
        while filled < len(buffer) and (count := os.preadv(self._descriptor, [buffer[filled:]], start + filled)):
            filled += count
        return filled

    def write(self, start: int, content: bytes | memoryview) -> None:
        """Write all of `content` at `start`. Raises `OSError`."""
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self._descriptor, rest, start)
            start, rest = start + written, rest[written:]

    def pieces(self, num_bytes: int) -> Iterator[bytes]:
        """The content, `num_bytes` at a time."""
        for start in range(0, self.size, num_bytes):
            yield self.read(start, num_bytes)

    def mapped(self) -> memoryview:
        """The content in memory that the system can reclaim; the file must not be empty. Raises `OSError`."""
        return memoryview(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))

    def move(self, path: Path) -> None:
        """Give the file another path of the same disk, in place of the file there. Raises `OSError`."""
        try:
            self.path.replace(path)
        except FileNotFoundError:  # deleted meanwhile
            copy = RandomAccessFile(path, fresh=True)
            for number, piece in enumerate(self.pieces(COPY_BYTES)):
                copy.write(number * COPY_BYTES, piece)
        self.path = path
