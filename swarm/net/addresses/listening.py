"""The ports that a node listens on: kept across restarts, because others have its address, and refused when taken."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from swarm.errors import TransportError
from swarm.files import replace_file

PATIENCE_S = 3.0
"""A killed process's daemon holds its port for a moment longer."""
POLL_S = 0.1


def with_port(listen: str) -> str:
    """The listen address with port 0 replaced by a free port. Raises `TransportError`."""
    parts = listen.split("/")
    if not _is_local(parts) or parts[4] != "0":
        return listen
    try:
        with bound(parts) as probe:
            return "/".join([*parts[:4], str(probe.getsockname()[1]), *parts[5:]])
    except OSError as error:
        raise _cannot_listen(listen, error) from error


def check_free(address: str) -> None:
    """Raises `TransportError` when a listen address is taken for `PATIENCE_S`, or is none of this machine.

    Daemons listen with SO_REUSEPORT: a port in use would be shared, and connections could go to either process.
    """
    parts = address.split("/")
    if not _is_local(parts):
        return
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            bound(parts).close()
            return
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not taken or time.monotonic() > deadline:
                raise _cannot_listen(address, error) from error
        time.sleep(POLL_S)


def same_ports(listen: Sequence[str], before: Path) -> tuple[tuple[str, ...], list[str]]:
    """Listen addresses with the ports that `before` names, and others' ports where these are taken meanwhile.

    `before` is written by `keep_ports`. The second list has a sentence for each port that could not be kept. Raises
    `TransportError` as above for an address whose port is not 0.
    """
    kept = _read(before)
    found, lost = [], []
    for address in listen:
        again = next((each for each in kept if _any_port(each) == address), None)
        if again is None:
            check_free(address)
            found.append(with_port(address))
            continue
        try:
            check_free(again)
        except TransportError as error:
            again = with_port(address)
            lost.append(f"{error}; now it is {again}, and addresses that were given out before no longer work")
        found.append(again)
    return tuple(found), lost


def keep_ports(listen: Sequence[str], file: Path) -> None:
    """Write the listen addresses for the next process in this directory. Raises `OSError`."""
    replace_file(file, "".join(f"{address}\n" for address in listen).encode())


def _read(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []


def _is_local(parts: Sequence[str]) -> bool:
    """Whether it is an address and port that a socket can be bound to."""
    return len(parts) >= 5 and parts[1] in ("ip4", "ip6") and parts[3] in ("tcp", "udp") and parts[4].isdecimal()


def _any_port(address: str) -> str:
    parts = address.split("/")
    return "/".join([*parts[:4], "0", *parts[5:]])


def bound(parts: Sequence[str]) -> socket.socket:
    """A socket bound to the address whose parts between slashes these are. Raises `OSError`, `OverflowError`,
    `ValueError`."""
    family = socket.AF_INET6 if parts[1] == "ip6" else socket.AF_INET
    kind = socket.SOCK_STREAM if parts[3] == "tcp" else socket.SOCK_DGRAM
    probe = socket.socket(family, kind)
    try:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port with only closing connections is free
        probe.bind((parts[2], int(parts[4])))
        if kind == socket.SOCK_STREAM:
            probe.listen()
    except BaseException:
        probe.close()
        raise
    return probe


def _cannot_listen(address: str, error: Exception) -> TransportError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        fix = "end the process that has this port (`swarm doctor` names it), or set network.listen to another"
        return TransportError(f"cannot listen on {address}: it is taken; {fix}")
    reason = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
    fix = "set network.listen to an address of this machine and a port from 1024 on"
    return TransportError(f"cannot listen on {address}: {reason}; {fix}")
