"""The gate: the daemon's process may send only to peers that this node dials, or that have connected to it.

The daemon dials whatever its protocols say: addresses that peers claim in `identify`, requests to dial back. A seccomp
filter on its process stops every `connect`, and every datagram to a named address, until this process has read the
address and let it pass, or refused it with `EACCES`. Needs no privileges, but Linux 5.5 or newer on x86_64 or aarch64.

Datagrams of a daemon that listens on QUIC pass: answers to connected peers cannot be distinguished from dials.

This is a rule for the daemon's own code, not a sandbox for one that was taken over: the address is read before the
kernel reads it, and is not what Go would not pass.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import platform
import re
import select
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from swarm import kernel
from swarm.net.addresses.dial import plain_ip

logger = logging.getLogger(__name__)

Destination = tuple[str, int]
"""An IP, as `plain_ip` writes it, and a port."""

_CONNECT, _SENDTO, _SENDMSG, _SENDMMSG, _IO_URING_SETUP = (42, 203), (44, 206), (46, 211), (307, 269), (425, 425)
"""Numbers of calls on x86_64 and aarch64."""
_SHORTEST, _LONGEST = 16, 28
"""Bytes of an IP's address as Go passes it; those of netlink are shorter, paths of sockets are longer."""
_RECEIVE, _ANSWER = 0xC050_2100, 0xC018_2101
"""Numbers of `ioctl` for a call that waits, and for the decision."""
_WAITING = struct.Struct("=QIIiIQ6Q")
"""Id, thread, flags; number of the call, architecture, instruction; arguments."""
_DECISION = struct.Struct("=QqiI")
_GO_ON = 1
_MESSAGE = struct.Struct("=QI")
"""Where the address of a `sendmsg` is, and its length."""

_DISCOVERY = ("239.255.255.250", 1900)
"""Multicast address of UPnP."""
OLDEST = (5, 5)
"""Earlier versions of Linux could refuse a call, but not let it proceed."""
ROUTES = Path("/proc/net/route")
_IS_GATEWAY = 2


class Gate:
    """Decides on what a daemon sends. A daemon is started by `spawn`; all else happens on the loop that called it."""

    def __init__(self, *, datagrams: bool, maps_ports: bool) -> None:
        """`maps_ports`: the routers of this machine, and the group at which routers are asked for, are let through."""
        self.problem = "it was not started"
        """Why everything passes; empty if nothing does unless it was let through."""
        self.on_refused: Callable[[], None] = lambda: None
        """Called for each call that was refused."""
        self.datagrams = datagrams
        """Whether datagrams pass."""
        self._maps_ports = maps_ports
        self._open: Counter[Destination] = Counter()
        self._listener = -1
        self._memory = -1

    def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the daemon in a new session, its output in a pipe. Raises `OSError` if it cannot run."""
        # A filter binds the thread that installs it, for good, and what that thread starts.
        with ThreadPoolExecutor(1, "daemon-start") as thread:
            process = thread.submit(self._spawn, command, environment).result()
        if self._listener >= 0:
            asyncio.get_running_loop().add_reader(self._listener, self._decide)
        return process

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        try:
            self._listener, self.problem = _listen(self.datagrams), ""
        except OSError as error:
            self.problem = str(error)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            self.close()
            raise
        if not self.problem:
            try:
                self._memory = os.open(f"/proc/{process.pid}/mem", os.O_RDONLY)
            except OSError as error:
                self.problem = f"the daemon's memory cannot be read: {error.strerror}"
        return process

    @contextmanager
    def to(self, destinations: Iterable[Destination]) -> Iterator[None]:
        """While these are dialled."""
        dialled = list(destinations)
        self._open.update(dialled)
        try:
            yield
        finally:
            self._open.subtract(dialled)
            self._open += Counter()

    def close(self) -> None:
        """Decide on nothing more; the process must have ended, or all that waits fails with `ENOSYS`."""
        for descriptor in (self._listener, self._memory):
            if descriptor >= 0:
                os.close(descriptor)
        self._listener = self._memory = -1

    def stop(self) -> None:
        """`close`, on the loop of `spawn`."""
        if self._listener >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
        self.close()

    def _decide(self) -> None:
        """Answer one call that waits."""
        waits = select.poll()
        waits.register(self._listener, select.POLLIN)
        if not any(event & select.POLLIN for _, event in waits.poll(0)):
            self.stop()  # the process has ended
            return
        request = bytearray(_WAITING.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, request)
        except OSError:
            return  # its thread has been interrupted meanwhile
        call, _, _, number, _, _, *arguments = _WAITING.unpack(request)
        passes = bool(self.problem) or self._passes(number, arguments)
        decision = _DECISION.pack(call, 0, 0, _GO_ON) if passes else _DECISION.pack(call, 0, -errno.EACCES, 0)
        with suppress(OSError):
            fcntl.ioctl(self._listener, _ANSWER, bytearray(decision))
        if not passes:
            self.on_refused()

    def _passes(self, number: int, arguments: Sequence[int]) -> bool:
        column = kernel.column()
        try:
            if number == _CONNECT[column]:
                destination = self._read_address(arguments[1], arguments[2])
            elif number == _SENDTO[column]:
                destination = self._read_address(arguments[4], arguments[5])
            else:
                destination = self._read_address(*_MESSAGE.unpack(self._read(arguments[1], _MESSAGE.size)))
        except (OSError, ValueError, struct.error) as error:
            logger.warning("refused the network daemon a call whose address cannot be read: %s", error)
            return False
        if destination is None or self._open[destination]:
            return True
        if self._maps_ports and (destination == _DISCOVERY or destination[0] in routers()):
            return True
        logger.debug("the network daemon may not send to %s, port %s: nobody dials it", *destination)
        return False

    def _read_address(self, at: int, num_bytes: int) -> Destination | None:
        """None for what is not an IP's."""
        if not at or num_bytes < _SHORTEST:
            return None
        content = self._read(at, min(num_bytes, _LONGEST))
        family, port = struct.unpack_from("=H", content)[0], struct.unpack_from(">H", content, 2)[0]
        if family == socket.AF_INET:
            return plain_ip(content[4:8]), port
        if family == socket.AF_INET6:
            return plain_ip(content[8:24]), port
        return None

    def _read(self, at: int, num_bytes: int) -> bytes:
        content = os.pread(self._memory, num_bytes, at)
        if len(content) != num_bytes:
            raise ValueError("it is not in memory")
        return content


class _Call(NamedTuple):
    """A call that names an address."""

    number: tuple[int, int]
    length: int
    """Index of the argument with the address's length."""


def _program(datagrams: bool) -> bytes:
    column = kernel.column()
    named = [_Call(_CONNECT, 2)] if datagrams else [_Call(_CONNECT, 2), _Call(_SENDTO, 5)]
    code = [kernel.number_of_call(kernel.allow())]
    for call in named:
        of_an_ip = (
            kernel.half_of_argument(2 * call.length)
            + kernel.instruction(kernel.AT_LEAST, _SHORTEST, 0, 2)
            + kernel.instruction(kernel.AT_LEAST, _LONGEST + 1, 1, 0)
            + kernel.notify()
            + kernel.allow()
        )
        code.append(kernel.instruction(kernel.EQUAL, call.number[column], 0, kernel.length(of_an_ip)) + of_an_ip)
    if not datagrams:
        code.append(kernel.instruction(kernel.EQUAL, _SENDMSG[column], 0, 1) + kernel.notify())
        code.append(kernel.instruction(kernel.EQUAL, _SENDMMSG[column], 0, 1) + kernel.refuse(errno.EACCES))
    code.append(kernel.instruction(kernel.EQUAL, _IO_URING_SETUP[column], 0, 1) + kernel.refuse(errno.ENOSYS))
    return b"".join([*code, kernel.allow()])


def _listen(datagrams: bool) -> int:
    """Install a filter for this thread; returns its listener. Raises `OSError`."""
    if sys.platform != "linux" or _version() < OLDEST:
        raise OSError(f"this needs Linux {'.'.join(map(str, OLDEST))}")
    program = _program(datagrams)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    try:
        return kernel.install(program, kernel.NEW_LISTENER | kernel.WAIT_KILLABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return kernel.install(program, kernel.NEW_LISTENER)  # before Linux 5.19


def _version() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])


def routers() -> frozenset[str]:
    """The routers of this machine (IPv4)."""
    found = set()
    with suppress(OSError, ValueError):
        for line in ROUTES.read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[3], 16) & _IS_GATEWAY:
                found.add(plain_ip(int(fields[2], 16).to_bytes(4, sys.byteorder)))
    return frozenset(found)
