"""System calls that Python's library does not offer, made through the C library."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38

CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000
_CAPABILITY_VERSION = 0x2008_0522


def syscall(number: int, *arguments: int | ctypes.c_void_p | None) -> int:
    """The result of a system call; pointers as `ctypes.c_void_p`. Raises `OSError`."""
    return _checked(
        _libc.syscall(
            ctypes.c_long(number),
            *(ctypes.c_long(value) if isinstance(value, int) else value for value in arguments),
        )
    )


def pointer(structure: ctypes.Structure | ctypes.Array[ctypes.c_char]) -> ctypes.c_void_p:
    """A structure's address for `syscall`; the caller keeps the structure alive."""
    return ctypes.c_void_p(ctypes.addressof(structure))


def prctl(option: int, value: int) -> None:
    """Change an attribute of this process. Raises `OSError`."""
    _checked(_libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(each) for each in (value, 0, 0, 0))))


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Raises `OSError`."""
    _checked(_libc.unshare(ctypes.c_int(flags)))


def drop_capabilities() -> None:
    """Drop all capabilities, even as root, for this thread and those it starts. Raises `OSError`."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)))


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
