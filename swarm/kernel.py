"""What Python's library does not offer of the kernel: system calls, made through the C library, and seccomp filters.

A filter is a program in classic BPF that decides on every system call of a thread and those that it starts: the
concatenation of the instructions here; jumps count instructions.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

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


ON_ALL_THREADS = 1 << 0
NEW_LISTENER = 1 << 3
WAIT_KILLABLE = 1 << 5
"""A call that a listener has received is interrupted by the end of its process only (Linux 5.19)."""

LOAD, AND, EQUAL, AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
"""Load a word of the call, bitwise and with a constant, compare with a constant."""
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

_SET_MODE_FILTER = 1
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF_0000, 0x0005_0000, 0x7FC0_0000
_INSTRUCTION = struct.Struct("=HBBI")
_MACHINES = {"x86_64": (0, 0xC000_003E, 317), "aarch64": (1, 0xC000_00B7, 277)}
"""Column of tables of call numbers, the kernel's constant for the architecture, and its number of `seccomp`."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def column() -> int:
    """This machine's place in pairs of call numbers: 0 is x86_64, 1 is aarch64. Raises `OSError` for any other."""
    if platform.machine() not in _MACHINES:
        raise OSError(f"no numbers of system calls for {platform.machine()}")
    return _MACHINES[platform.machine()][0]


def install(program: bytes, flags: int) -> int:
    """Install a filter for this thread; returns the listener of `NEW_LISTENER`, else 0. Raises `OSError`.

    Requires `PR_SET_NO_NEW_PRIVS`.
    """
    instructions = ctypes.create_string_buffer(program, len(program))
    described = _Program(length(program), ctypes.addressof(instructions))
    return syscall(_MACHINES[platform.machine()][2], _SET_MODE_FILTER, flags, pointer(described))


def length(program: bytes) -> int:
    """Number of instructions."""
    return len(program) // _INSTRUCTION.size


def instruction(code: int, constant: int, when_true: int = 0, when_false: int = 0) -> bytes:
    """One instruction; comparisons skip as many instructions as their outcome says."""
    return _INSTRUCTION.pack(code, when_true, when_false, constant)


def half_of_argument(half: int) -> bytes:
    """Load half an argument: 0 and 1 are the low and the high half of the first one, 2 and 3 of the second, ..."""
    return instruction(LOAD, _ARGUMENTS_AT + 4 * half)


def number_of_call(otherwise: bytes) -> bytes:
    """Load the call's number; `otherwise` decides on calls of another architecture, which have other numbers."""
    return (
        instruction(LOAD, _ARCHITECTURE_AT)
        + instruction(EQUAL, _MACHINES[platform.machine()][1], length(otherwise), 0)
        + otherwise
        + instruction(LOAD, _NUMBER_AT)
    )


def allow() -> bytes:
    """The call is made."""
    return instruction(_RETURN, _ALLOW)


def refuse(error: int) -> bytes:
    """The call fails with `error`."""
    return instruction(_RETURN, _ERRNO | error)


def notify() -> bytes:
    """The call waits for the listener's decision."""
    return instruction(_RETURN, _NOTIFY)
