"""A worker confines itself before it reads foreign text, in layers; a machine may lack some of them.

    start ─▶ enclose: limits, namespaces, privileges, Landlock ─▶ libraries are imported
          ─▶ seal: the seccomp filter ─▶ probe: test each protection ─▶ the first job

Landlock precedes the import, because it binds only later threads and pyarrow starts one; the filter follows it and
binds all threads. The process cannot undo either.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from swarm import kernel
from swarm.environments.sandbox import landlock, seccomp

PROTECTIONS = {
    "files": "only Python's own files",
    "network": "no network",
    "processes": "no programs or processes",
    "signals": "no signals to others",
    "memory": "bounded memory",
}
"""The protections of a worker, by what they prevent."""

MAX_OPEN_FILES = 256
MAX_FILE_BYTES = 2**16
"""Bytes of a worker's standard error, its only writable file."""
MAX_FILE_LIMIT_BYTES = 2**62
MAX_STACK_BYTES = 2**23
"""Stack of the main thread, which no limit of memory counts. Linux's default."""
MAX_ADDRESS_BYTES = 2**36
"""Address space, because page tables, a 512th of it, count nowhere. Libraries reserve a few GiB."""

_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store", "/gnu/store")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/urandom")
_PACKAGE = Path(__file__).resolve().parents[2]
_NETWORK_FILES = ("/etc", "/run/systemd/resolve", "/usr/share", "/usr/local/share", "/var/lib/ca-certificates")
"""Files for name resolution, and certificates."""


def in_words(unprotected: Mapping[str, str]) -> str:
    """One line with the protections that hold and those that do not, from `Confinement.probe`."""
    held = ", ".join(words for name, words in PROTECTIONS.items() if name not in unprotected)
    missing = "; ".join(f"{name} ({reason})" for name, reason in unprotected.items())
    return f"{held or 'nothing'}" + (f"; not kept from {missing}" if missing else "")


class Confinement:
    """The sandbox layers of this process, and why some are missing."""

    def __init__(self) -> None:
        """Start unconfined."""
        self._missing: dict[str, str] = {}

    def enclose(self, readable: Iterable[Path], writable: Iterable[Path], network: bool) -> None:
        """Refuse all files except Python's and these; without `network`, also refuse the network and large files."""
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
        if sys.platform != "linux":
            self._missing = dict.fromkeys(("Landlock", "seccomp"), "only Linux has it")
            return
        if not network:
            self._attempt("namespaces", _leave_namespaces)
        self._attempt("capabilities", kernel.drop_capabilities)
        self._attempt("privileges", lambda: kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1))
        # after the calls above, which clear this setting
        self._attempt("parent", lambda: kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL))
        readable = [*python_paths(), *readable, *(map(Path, _NETWORK_FILES) if network else ())]
        writable = [*writable, Path(os.devnull)]
        self._attempt("Landlock", lambda: landlock.confine(readable, writable, network))

    def limit_files(self, most_bytes: int) -> None:
        """Let no file become larger."""
        _limit(resource.RLIMIT_FSIZE, min(most_bytes, MAX_FILE_LIMIT_BYTES))

    def seal(self) -> None:
        """Permanently refuse every system call except those for computing and reading."""
        _limit(resource.RLIMIT_STACK, MAX_STACK_BYTES)
        _limit(resource.RLIMIT_AS, MAX_ADDRESS_BYTES)
        self.limit_files(MAX_FILE_BYTES)
        _limit(resource.RLIMIT_NPROC, 0)
        if sys.platform == "linux":
            self._attempt("seccomp", seccomp.seal)

    def probe(self, elsewhere: Path, memory_limit_bytes: int) -> dict[str, str]:
        """The protections that do not hold, each with the reason, tested in this process.

        `elsewhere` is a file of this user, in a similar directory, that the worker must not reach.
        """
        reached = {
            "files": (_can(_open_file, elsewhere) or _can(_make_file, elsewhere.parent), "Landlock"),
            "network": (_can(_open_socket, socket.AF_INET) or _can(_open_socket, socket.AF_UNIX), "seccomp"),
            "processes": (_can(_start_program) or _can(_fork), "seccomp"),
            "signals": (_can(os.kill, os.getppid(), 0), "seccomp"),
            "memory": (_exceeds_memory(memory_limit_bytes), "seccomp"),
        }
        return {
            what: f"{layer}: {self._missing.get(layer, 'it does not hold')}"
            for what, (open_, layer) in reached.items()
            if open_
        }

    def _attempt(self, layer: str, apply: Callable[[], None]) -> None:
        try:
            apply()
        except OSError as error:
            self._missing[layer] = _REASONS.get(error.errno or 0, error.strerror or str(error))


_REASONS = {
    errno.ENOSYS: "this kernel has none",
    errno.EOPNOTSUPP: "switched off in this kernel",
    errno.EPERM: "not permitted here",
}


def python_paths() -> list[Path]:
    """Paths of Python and its installed packages, without folders that also hold other files."""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths = [Path(path) for path in (*_SYSTEM_LIBRARIES, *_SYSTEM_FILES, *installed)]
    paths += [_PACKAGE]  # an import hook finds an editable installation, which is on no path
    paths += [Path(prefix, "lib") for prefix in (sys.base_prefix, sys.base_exec_prefix)]
    for entry in map(Path, filter(None, sys.path)):
        # a folder added to the path, as for an editable installation, may hold keys in addition to packages
        whole = entry.name in ("site-packages", "dist-packages") or not entry.is_dir()
        paths += [entry] if whole else (child for child in entry.iterdir() if _is_module(child))
    return paths


def _is_module(path: Path) -> bool:
    return path.suffix in (".py", ".so") or (path / "__init__.py").is_file()


def _limit(what: int, most: int) -> None:
    """Permanently lower a limit; a lower one stays."""
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(what, (most, most))


def _leave_namespaces() -> None:
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC)
    except OSError:
        kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC)  # for root, when users may not create their own


def _can(attempt: Callable[..., object], *arguments: object) -> bool:
    try:
        attempt(*arguments)
    except OSError:
        return False
    return True


def _open_file(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _make_file(directory: Path) -> None:
    path = directory / f"probe-{os.getpid()}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    path.unlink()


def _open_socket(family: int) -> None:
    """Binds an address, which needs a network but no peer."""
    with socket.socket(family, socket.SOCK_DGRAM) as opened:
        if family == socket.AF_INET:
            opened.connect(("127.0.0.1", 9))


def _exceeds_memory(limit_bytes: int) -> bool:
    """Whether the limit does not hold, or there is memory that it does not count: shared memory and stacks."""
    private = _can(_map, mmap.MAP_PRIVATE, limit_bytes)
    uncounted = _can(_map, mmap.MAP_SHARED, 1) or _can(_map, mmap.MAP_PRIVATE | seccomp.MAP_GROWSDOWN, 1)
    return private or uncounted or _can(_enlarge)


def _map(kind: int, size: int) -> None:
    mmap.mmap(-1, size, kind | mmap.MAP_ANON).close()


def _enlarge() -> None:
    """Enlarge a mapping, which could be the stack."""
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANON) as mapped:
        mapped.resize(2 * mmap.PAGESIZE)


def _start_program() -> None:
    with suppress(FileNotFoundError):
        os.execv("/nonexistent", ["nonexistent"])


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
