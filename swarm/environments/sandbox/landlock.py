"""Landlock: a process permanently gives up files, TCP ports and signals, without root.

Linux 5.13 or newer. Newer versions of its interface (ABI) can refuse more; rights unknown to this kernel are left out.
Threads and processes started later are bound as well, existing threads are not.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from swarm import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_ABI = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights that an ABI and its successors can remove."""
_TCP = {4: 0b11}
"""Binding and connecting."""
_SCOPES = {6: 0b11}
"""Abstract sockets of other processes, and signals to them."""

_READ = _READ_FILE | _READ_DIR
_ON_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE
"""Rights that a rule on a single file may name."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("tcp", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """The newest version that this kernel supports. Raises `OSError` without Landlock."""
    return kernel.syscall(_CREATE_RULESET, None, 0, _GET_ABI)


def confine(readable: Iterable[Path], writable: Iterable[Path], network: bool) -> None:
    """Allow only these paths with everything below them, and TCP only with `network`.

    Requires `PR_SET_NO_NEW_PRIVS`. Missing paths are skipped. Raises `OSError`.
    """
    version = abi()
    rights = _newest(_FILE_RIGHTS, version)
    # for devices such as `/dev/ptmx`, the right to control them is useless without the right to open them
    ruleset = _Ruleset(rights, 0 if network else _newest(_TCP, version), _newest(_SCOPES, version))
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    handle = kernel.syscall(_CREATE_RULESET, kernel.pointer(ruleset), size, 0)
    try:
        for path in readable:
            _allow(handle, path, _READ & rights)
        for path in writable:
            _allow(handle, path, rights)
        kernel.syscall(_RESTRICT_SELF, handle, 0)
    finally:
        os.close(handle)


def _allow(handle: int, path: Path, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            rights &= _ON_FILES
        rule = _PathBeneath(rights, parent)
        kernel.syscall(_ADD_RULE, handle, _RULE_PATH_BENEATH, kernel.pointer(rule), 0)
    finally:
        os.close(parent)


def _newest(by_version: dict[int, int], version: int) -> int:
    return max((flags for since, flags in by_version.items() if since <= version), default=0)
