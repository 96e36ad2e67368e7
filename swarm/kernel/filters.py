"""Seccomp filters: programs in classic BPF that decide on every system call of a thread and those that it starts.

A program is the concatenation of these instructions; jumps count instructions.
"""

from __future__ import annotations

import ctypes
import platform
import struct

from swarm.kernel import calls

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
    return calls.syscall(_MACHINES[platform.machine()][2], _SET_MODE_FILTER, flags, calls.pointer(described))


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
