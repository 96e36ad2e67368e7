"""A seccomp filter that leaves a worker only the system calls for computing and reading files.

An allow list, because harmful calls are many and new kernels add more: sockets, io_uring, programs, processes, threads,
signals, tracing, changes of owners and modes. Other calls fail with `EPERM`; calls newer than this list fail as on a
kernel without them, for which libraries have a fallback.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import NamedTuple

from swarm import kernel

_FIRST_UNKNOWN = 463
"""Kernels up to 6.10 use call numbers below this."""

_FREELY = {
    # name: number on x86_64, on aarch64; None where there is no such call
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "lseek": (8, 62),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, None),
    "sched_yield": (24, 124),
    "mincore": (27, 232),
    "madvise": (28, 233),
    "dup": (32, 23),
    "nanosleep": (35, 101),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "gettid": (186, 178),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "getdents64": (217, 61),
    "set_tid_address": (218, 96),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "set_robust_list": (273, 99),
    "get_robust_list": (274, 100),
    "getcpu": (309, 168),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "statx": (332, 291),
    "rseq": (334, 293),
    "faccessat2": (439, 439),
}


class _Check(NamedTuple):
    """Half an argument, masked, must have one of the listed values."""

    half: int
    """0 and 1 are the low and the high half of the first argument, 2 and 3 those of the second, ..."""
    mask: int
    values: tuple[int, ...]


class _Conditional(NamedTuple):
    """A call that is allowed when all checks pass."""

    numbers: tuple[int | None, int | None]
    checks: tuple[_Check, ...]


_ALL_BITS = 0xFFFF_FFFF
_TMPFILE = 0o20_000_000
_CHANGING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | _TMPFILE
_F_DUPFD_CLOEXEC = 1030
_TCGETS, _FIOCLEX, _FIONREAD = 0x5401, 0x5451, 0x541B
MAP_GROWSDOWN = 0x100
_DESCRIPTORS_OWN = (fcntl.F_DUPFD, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL, _F_DUPFD_CLOEXEC)

_UNCOUNTED = mmap.MAP_SHARED | mmap.MAP_ANON | MAP_GROWSDOWN

_CONDITIONALLY = {
    "open": _Conditional((2, None), (_Check(2, _CHANGING, (0,)),)),
    "openat": _Conditional((257, 56), (_Check(4, _CHANGING, (0,)),)),
    # not F_SETOWN and F_SETSIG, which send signals to others
    "fcntl": _Conditional((72, 25), (_Check(2, _ALL_BITS, _DESCRIPTORS_OWN),)),
    # needed to open files; no terminals, no file attributes
    "ioctl": _Conditional((16, 29), (_Check(2, _ALL_BITS, (_TCGETS, _FIOCLEX, _FIONREAD)),)),
    # RLIMIT_DATA counts neither shared anonymous memory nor stacks; `mremap`, which could enlarge the stack that is
    # there, is not in these lists, and the C library copies instead
    "mmap": _Conditional((9, 222), (_Check(6, _UNCOUNTED, (0, mmap.MAP_SHARED, mmap.MAP_ANON)),)),
    # this process's limits can be read, not set: the pointer to new ones must be null
    "prlimit64": _Conditional((302, 261), tuple(_Check(half, _ALL_BITS, (0,)) for half in (0, 4, 5))),
}


def seal() -> None:
    """Restrict all threads of this process to the calls listed here.

    Requires `PR_SET_NO_NEW_PRIVS`. Raises `OSError` when the kernel refuses or the architecture is unknown.
    """
    if kernel.install(_program(kernel.column()), kernel.ON_ALL_THREADS):
        raise OSError("a thread could not be bound")


def _program(column: int) -> bytes:
    code = [
        kernel.number_of_call(kernel.refuse(errno.ENOSYS)),  # calls of 32-bit programs have other numbers
        kernel.instruction(kernel.AT_LEAST, _FIRST_UNKNOWN, 0, 1),
        kernel.refuse(errno.ENOSYS),
    ]
    for numbers in _FREELY.values():
        if (number := numbers[column]) is not None:
            code += [kernel.instruction(kernel.EQUAL, number, 0, 1), kernel.allow()]
    for call in _CONDITIONALLY.values():
        if (number := call.numbers[column]) is not None:
            checks = b"".join(map(_require, call.checks)) + kernel.allow()
            code += [kernel.instruction(kernel.EQUAL, number, 0, kernel.length(checks)), checks]
    return b"".join([*code, kernel.refuse(errno.EPERM)])


def _require(check: _Check) -> bytes:
    """Continue after these instructions if the check passes, else refuse."""
    num_values = len(check.values)
    return b"".join(
        [
            kernel.half_of_argument(check.half),
            kernel.instruction(kernel.AND, check.mask),
            *(kernel.instruction(kernel.EQUAL, value, num_values - index) for index, value in enumerate(check.values)),
            kernel.refuse(errno.EPERM),
        ]
    )
