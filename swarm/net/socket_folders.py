"""Folders for the sockets between a node and its daemon, among the temporary files."""

from __future__ import annotations

import socket
import stat
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

PREFIX = "swarm-p2pd-"
STALE_AFTER_S = 300.0
"""Age from which a folder without a listener has no owner: a new one's daemon may still be starting."""
CONNECT_TIMEOUT_S = 1.0


def make_folder() -> Path:
    """A folder that only this user can read: whoever has the control socket has the node's identity.

    What killed nodes left is removed.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or one that another node is removing
            _remove_if_left(folder)
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def _remove_if_left(folder: Path) -> None:
    if time.time() - folder.lstat().st_mtime <= STALE_AFTER_S:
        return
    sockets = [path for path in folder.iterdir() if stat.S_ISSOCK(path.lstat().st_mode)]
    if any(map(_is_heard, sockets)):
        return
    for path in sockets:
        path.unlink()
    folder.rmdir()


def _is_heard(path: Path) -> bool:
    """Whether a process listens there."""
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # too busy to answer, or not ours
        return True
